// SPDX-License-Identifier: Apache-2.0
//
// Doors in the file system, of either engine. What a file leads to is known to the module, or to
// whoever listens at the file's name: see attach.hpp.
#pragma once

#include <sys/stat.h>

#include <cstdint>

#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall::door {

// Whether a door is attached to the file that is at `path` and has `status`; `flags`: O_NOFOLLOW or
// 0. May change errno.
bool is_attached(int directory, const char* path, int flags, const struct stat& status) noexcept;
// What is opened, as far as that is known: where it cannot be found out, a door is refused.
enum class Sought : std::uint8_t { file_or_door, door };
// A descriptor of the door that the open file leads to, close-on-exec; none where there is no such
// door, or one whose server lets nobody in, or where there is no descriptor for it: then `refusal`
// says why. May change errno.
UniqueFd open_attached(int fd, const struct stat& status, Deadline within, Sought sought,
                       int& refusal) noexcept;
// As door_open(3); ETIMEDOUT where the server has not answered within that time.
int open_door(const char* path, int flags, Deadline within);

}  // namespace farcall::door
