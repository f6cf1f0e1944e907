// SPDX-License-Identifier: Apache-2.0
//
// Between C and the rooms: numbers for exceptions, deadlines for timeouts, options that may grow.
#pragma once

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

#include "farcall/error.hpp"
#include "farcall/farcall.h"
#include "farcall/wait.hpp"
#include "process/process.hpp"

namespace farcall::c {

// The negative errno of the exception that is being handled.
int translate_exception() noexcept;

// Runs what must let no exception out, nor change errno. For what is quick or waits in a ring:
// nothing in there is a point of cancellation.
template <class Body>
auto translated(Body body) noexcept -> decltype(body()) {
  const int before = errno;
  auto result = decltype(body()){};
  try {
    result = body();
  } catch (...) {
    result = translate_exception();
  }
  errno = before;
  return result;
}

// The same for all else.
template <class Body>
auto guarded(Body body) noexcept -> decltype(body()) {
  const process::NoCancel guard;
  return translated(body);
}

inline Deadline deadline_of(std::int64_t timeout) noexcept {
  if (timeout < 0) return Deadline::never();
  return Deadline::after(std::chrono::nanoseconds(timeout));
}

// For waits that end with ETIMEDOUT at any deadline.
inline int unless_now(int error, std::int64_t timeout) noexcept {
  return error == -ETIMEDOUT && timeout == 0 ? -EAGAIN : error;
}

// Throws SystemError: EINVAL for a number that is none of FARCALL_WAIT_...
WaitMode wait_mode_of(int wait);

// Throws SystemError: EINVAL for a buffer that cannot be.
inline void check_buffer(const void* bytes, std::size_t size) {
  if ((bytes == nullptr && size != 0) || size > PTRDIFF_MAX) throw SystemError(EINVAL, "a buffer");
}

// What the caller has said, and zeros for what a caller of another version did not know of. Throws
// SystemError: EINVAL where it has said what this version does not know of.
template <class Options>
Options known_options(const Options* given) {
  Options known{};
  known.size = sizeof known;
  if (given == nullptr) return known;
  const std::size_t size = given->size;
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size < sizeof size) throw SystemError(EINVAL, "size of options");
  for (std::size_t i = sizeof known; i < size; ++i)
    if (bytes[i] != 0) throw SystemError(EINVAL, "an option of a later version");
  std::memcpy(&known, given, size < sizeof known ? size : sizeof known);
  return known;
}

// An answer as the first version had it: later members may be missing. Throws SystemError: EINVAL.
inline void check_answer(const farcall_answer* answer) {
  constexpr std::size_t kFirst = offsetof(farcall_answer, memory_size) + sizeof(std::size_t);
  if (answer == nullptr || answer->size < kFirst) throw SystemError(EINVAL, "an answer");
}

// Fills in what the caller has room for, with zeros for what this version does not know of. What
// was there does not count. Throws SystemError: EINVAL for a size that cannot be.
template <class Structure>
void fill_in(Structure* room, Structure known) {
  constexpr std::size_t kMost = 4096;  // more was not meant to be one
  if (room == nullptr || room->size < sizeof room->size || room->size > kMost)
    throw SystemError(EINVAL, "size of a structure");
  const std::size_t size = known.size = room->size;
  std::memset(room, 0, size);
  std::memcpy(room, &known, std::min(size, sizeof known));
}

}  // namespace farcall::c
