// SPDX-License-Identifier: Apache-2.0
//
// For tests that choose between the engines of doors.
#pragma once

#include <door.h>
#include <sys/socket.h>

#include <cstdlib>

namespace farcall::door::test {

// In a child, before its first door.
inline void choose(const char* engine) { ::setenv("FARCALL_ENGINE", engine, 1); }

// Which engine a door is of: the kernel's files have no type.
inline const char* engine_of(int door) {
  door_info_t info{};
  if (::door_info(door, &info) != 0) return "none";
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(door, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? "shared"
                                                                                : "kernel";
}

}  // namespace farcall::door::test
