// SPDX-License-Identifier: Apache-2.0
//
// Doors of stplr.ko, as whoever has a descriptor of one uses them; see door(4).
#pragma once

#include <door.h>

#include <cstdint>
#include <optional>
#include <span>

#include "farcall/call.hpp"

namespace farcall::door::kernel {

struct Info {
  door_info_t shown;
  std::uint64_t data_min;
  std::uint64_t data_max;
  std::uint64_t desc_max;
};

// Whether `fd` may be one; most that are none are told apart. Leaves errno alone.
bool may_be_door(int fd) noexcept;

// What `fd` is; nothing where it is no door of the kernel's. Leaves errno alone.
std::optional<Info> info(int fd) noexcept;

// What goes along with a call. `error`: EINVAL or EFAULT for what cannot be passed, or 0; the
// kernel tells of it when its turn has come.
struct Passed {
  std::span<const int> descriptors;
  std::size_t count = 0;  // that were to be passed
  int error = 0;
};

// Calls a door of the kernel's; `arguments` is null where there are none. The calling thread has
// cancellation disabled; with `cancellable` the wait may end by it all the same. Returns 0 or an
// errno value, EBADF where it is none. Throws std::bad_alloc.
int call(int fd, const door_arg_t* arguments, const Passed& passed, bool cancellable,
         CallResults& results);

// Return 0 or an errno value.
int set_param(int fd, int which, std::uint64_t value) noexcept;
int revoke(int fd) noexcept;

}  // namespace farcall::door::kernel
