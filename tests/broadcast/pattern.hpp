// SPDX-License-Identifier: Apache-2.0
//
// Messages for tests: their content follows from their number.
#pragma once

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "farcall/broadcast.hpp"

namespace farcall::test {

using namespace std::chrono_literals;

inline Deadline soon() { return Deadline::after(20s); }

// A name that no other test of the moment has.
inline std::string unique_name() {
  static int count = 0;
  return "broadcast-test-" + std::to_string(::getpid()) + "-" + std::to_string(++count);
}

class Numbered {
 public:
  // Up to `longest` bytes, at least 8.
  explicit Numbered(std::size_t longest) : longest_(longest) {}

  std::span<const std::byte> make(std::uint64_t number) {
    std::minstd_rand random(static_cast<unsigned>(number) + 1);
    const std::size_t most = random() % 8 == 0 ? longest_ : std::min<std::size_t>(longest_, 200);
    bytes_.resize(8 + random() % (most - 7));
    std::memcpy(bytes_.data(), &number, sizeof number);
    for (std::size_t i = 8; i < bytes_.size(); ++i)
      bytes_[i] = static_cast<std::byte>(number * 31 + i * 7);
    return bytes_;
  }
  // Which message it is; -1: none.
  static std::int64_t number_of(std::span<const std::byte> bytes) {
    std::uint64_t number = 0;
    if (bytes.size() < sizeof number) return -1;
    std::memcpy(&number, bytes.data(), sizeof number);
    for (std::size_t i = 8; i < bytes.size(); ++i)
      if (bytes[i] != static_cast<std::byte>(number * 31 + i * 7)) return -1;
    return static_cast<std::int64_t>(number);
  }

 private:
  std::size_t longest_;
  std::vector<std::byte> bytes_;
};

// What came of reading until the end, or until `count` have come.
struct Received {
  std::uint64_t messages = 0;
  std::uint64_t missed = 0;
  std::uint64_t wrong = 0;  // torn, or out of order
  Outcome end = Outcome::ok;
};
inline Received receive(Subscriber& subscriber, std::uint64_t count = UINT64_MAX,
                        std::uint64_t first = 0) {
  Received all;
  std::vector<std::byte> into(1 << 16);
  for (std::uint64_t next = first; all.messages < count; ++all.messages) {
    std::size_t size = 0;
    std::uint64_t missed = 0;
    all.end = subscriber.read(into, size, missed, soon());
    all.missed += missed;
    if (all.end != Outcome::ok) break;
    next += missed;
    if (Numbered::number_of(std::span(into).first(size)) != static_cast<std::int64_t>(next))
      ++all.wrong;
    ++next;
  }
  return all;
}

inline Outcome send(Publisher& publisher, std::uint64_t from, std::uint64_t to,
                    std::size_t longest = 200) {
  Numbered numbered(longest);
  Outcome outcome = Outcome::ok;
  for (; from != to && outcome == Outcome::ok; ++from)
    outcome = publisher.write(numbered.make(from), soon());
  return outcome;
}

}  // namespace farcall::test
