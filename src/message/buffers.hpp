// SPDX-License-Identifier: Apache-2.0
//
// Several buffers as one run of bytes.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

namespace farcall::message {

using Buffers = std::span<const iovec>;

// Throws SystemError: EINVAL, EMSGSIZE.
Buffers checked(const iovec* buffers, int count);
std::size_t size_of(Buffers buffers) noexcept;
// Copies what fits, beginning at byte `offset` of the buffers. Returns how many bytes.
std::size_t scatter(std::span<const std::byte> from, Buffers to, std::size_t offset = 0) noexcept;
std::size_t gather(Buffers from, std::span<std::byte> to) noexcept;

// The bytes of buffers in one piece: where they are, if it is one already.
class Gathered {
 public:
  explicit Gathered(Buffers from);
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::vector<std::byte> copy_;
  std::span<const std::byte> bytes_;
};

inline std::span<std::byte> bytes_of(const iovec& buffer) noexcept {
  return {static_cast<std::byte*>(buffer.iov_base), buffer.iov_len};
}

}  // namespace farcall::message
