// SPDX-License-Identifier: Apache-2.0
//
// Pointers that cannot be valid: null, the first page, what belongs to the kernel. The kernel says
// EFAULT to them, so a call with one is left to it. Whether any other pointer is valid would cost a
// system call to know; a copy through one that is not ends the program.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

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

// Refused by the kernel, whatever there is to be told.
inline bool is_bad_time(const timespec* time) noexcept {
  if (is_no_address(time)) return is_bad_optional(time);
  return time->tv_sec < 0 || time->tv_nsec < 0 || time->tv_nsec >= 1'000'000'000;
}

inline constexpr std::size_t kMostParts = 1024;  // as the kernel, which refuses more

inline bool has_bad_part(const iovec* parts, std::size_t count) noexcept {
  if (count != 0 && is_no_address(parts)) return true;
  for (std::size_t i = 0; i < count && i < kMostParts; ++i)
    if (parts[i].iov_len != 0 && is_no_address(parts[i].iov_base)) return true;
  return false;
}

// Lengths that the kernel refuses before it moves anything.
inline bool is_bad_length(std::size_t length) noexcept { return length > SIZE_MAX / 2; }

inline bool has_bad_length(const iovec* parts, std::size_t count) noexcept {
  if (count > kMostParts) return true;
  for (std::size_t i = 0; i < count; ++i)
    if (is_bad_length(parts[i].iov_len)) return true;
  return false;
}

inline bool is_bad_vector(const iovec* parts, int count) noexcept {
  return count < 0 || (count != 0 && is_no_address(parts)) ||
         has_bad_length(parts, static_cast<std::size_t>(count));
}

// A message that the kernel refuses, whatever it is about.
inline bool is_bad_message(const msghdr* message) noexcept {
  return is_no_address(message) || (message->msg_iovlen != 0 && is_no_address(message->msg_iov)) ||
         (message->msg_name != nullptr && is_bad_length(static_cast<std::size_t>(
                                              static_cast<std::int32_t>(message->msg_namelen)))) ||
         has_bad_length(message->msg_iov, message->msg_iovlen);
}

// One that it refuses to send to.
inline bool is_bad_name(const void* name, socklen_t size) noexcept {
  return name != nullptr && (size > sizeof(sockaddr_storage) || (size != 0 && is_no_address(name)));
}

}  // namespace farcall::preload
