// SPDX-License-Identifier: Apache-2.0
//
// Reads a fuzzer's input piece by piece; zeros follow when it is used up.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

namespace farcall::door::fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(data, size) {}

  [[nodiscard]] bool empty() const { return rest_.empty(); }
  void bytes(void* into, std::size_t size) {
    if (size != 0) std::memset(into, 0, size);
    const std::size_t count = std::min(size, rest_.size());
    if (count != 0) std::memcpy(into, rest_.data(), count);
    rest_ = rest_.subspan(count);
  }
  template <class Number>
  Number number() {
    Number value;
    bytes(&value, sizeof value);
    return value;
  }
  std::span<const std::uint8_t> piece(std::size_t size) {
    const auto first = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(first.size());
    return first;
  }

 private:
  std::span<const std::uint8_t> rest_;
};

// What must hold, in every build.
inline void require(bool condition) {
  if (!condition) std::abort();
}

// Looks at each byte, so that a sanitizer sees those that are not there.
inline std::uint64_t look_at(std::span<const std::byte> data) {
  std::uint64_t sum = 0;
  for (const std::byte byte : data) sum += static_cast<std::uint64_t>(byte);
  return sum;
}

}  // namespace farcall::door::fuzz
