// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farcall/call.hpp"
#include "farcall/limits.h"

namespace farcall::call {

// Behind farcall_limits_set(), farcall_limits_get() and those of doors.
int set_limits(const farcall_limits* limits) noexcept;
int get_limits(farcall_limits* limits) noexcept;
// What has been set, over the defaults.
PortLimits limits_of_process() noexcept;

}  // namespace farcall::call
