// SPDX-License-Identifier: Apache-2.0
//
// Pointers that cannot be valid: null, the first page, what belongs to the kernel. The kernel says
// EFAULT to them, so a call with one is left to it. Whether any other pointer is valid would cost a
// system call to know; a copy through one that is not ends the program.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace farcall::preload {

inline bool is_no_address(const void* pointer) noexcept {
  constexpr std::uintptr_t kFirst = 4096;
  constexpr std::uintptr_t kBehindLast = std::uintptr_t{1} << 56;
  return reinterpret_cast<std::uintptr_t>(pointer) - kFirst >= kBehindLast - kFirst;
}

// Null may stand for "not wanted".
inline bool is_bad_optional(const void* pointer) noexcept {
  return pointer != nullptr && is_no_address(pointer);
}

inline bool has_bad_part(const iovec* parts, std::size_t count) noexcept {
  if (count != 0 && is_no_address(parts)) return true;
  for (std::size_t i = 0; i < count && i < 1024; ++i)
    if (parts[i].iov_len != 0 && is_no_address(parts[i].iov_base)) return true;
  return false;
}

inline bool is_bad_message(const msghdr* message) noexcept {
  return is_no_address(message) || (message->msg_iovlen != 0 && is_no_address(message->msg_iov));
}

}  // namespace farcall::preload
