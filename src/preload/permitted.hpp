// SPDX-License-Identifier: Apache-2.0
//
// Whether the filter of system calls that a process was started under lets it do what acceleration
// takes. What a process imposes on itself later is privilege.hpp's matter.
#pragma once

namespace farcall::preload {

// Where it does not, no connection is looked at from the first question on.
[[nodiscard]] bool acceleration_is_permitted() noexcept;

}  // namespace farcall::preload
