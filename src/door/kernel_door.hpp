// SPDX-License-Identifier: Apache-2.0
//
// Doors of stplr.ko, as whoever has a descriptor of one uses them; see door(4).
#pragma once

#include <door.h>
#include <sys/stat.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "door/engine.hpp"
#include "farcall/call.hpp"

namespace farcall::door::kernel {

// Whether `fd` may be one; most that are none are told apart. Leaves errno alone.
bool may_be_door(int fd) noexcept;
// What `fd` is; nothing where it is no door of the kernel's. Leaves errno alone.
std::optional<door_info_t> info(int fd) noexcept;
// Null where it is no door of the kernel's. Throws std::bad_alloc.
std::shared_ptr<AnyDoor> door_behind(int fd);

// What goes along with a call. `error`: EINVAL or EFAULT for what cannot be passed, or 0; the
// kernel tells of it when its turn has come.
struct Passed {
  std::span<const int> descriptors;
  std::size_t count = 0;  // that were to be passed
  int error = 0;
};

// Calls a door of the kernel's; `arguments` is null where there are none. A signal that was caught
// after `since` ends it. The calling thread has
// cancellation disabled; with `cancellable` the wait may end by it all the same. Returns 0 or an
// errno value, EBADF where it is none. Throws std::bad_alloc.
int call(int fd, const door_arg_t* arguments, const Passed& passed, bool cancellable,
         CallResults& results, SignalCount since);

// Files that lead to doors of the kernel's. Where there is no module, none does.

// Whether `file`, which need not be open for anything, is one of doorfs: a door by itself. That is
// asked first: the names of doors over shared memory are not for a file that root has covered. Of
// what is no such file `status` tells that much.
bool is_mounted(int file, const struct stat& status) noexcept;
bool may_be_mounted(const struct stat& status) noexcept;
// `file` need not be open for anything (O_PATH).
bool is_attached(int file) noexcept;
// A descriptor of the door that the open file leads to, close-on-exec, or none.
UniqueFd open_attached(int file) noexcept;
// Returns 0 or an errno value; EINVAL where none is attached.
int detach(int file) noexcept;

// ioctl(2) as a cancellation point. Returns 0 or an errno value.
int ioctl_cancellably(int fd, unsigned long command, void* argument);

}  // namespace farcall::door::kernel
