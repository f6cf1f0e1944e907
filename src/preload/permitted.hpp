// SPDX-License-Identifier: Apache-2.0
//
// Whether the filter of system calls that a process was started under lets it do what acceleration
// takes. What a process imposes on itself later is privilege.hpp's matter.
#pragma once

namespace farcall::preload {

// Where it does not, no connection is looked at from the first question on.
[[nodiscard]] bool acceleration_is_permitted() noexcept;

// Whether that has been asked, and it does.
[[nodiscard]] bool is_known_to_be_permitted() noexcept;

// Whether a filter may judge this thread's system calls at this moment; true where the kernel does
// not say.
[[nodiscard]] bool may_be_filtered() noexcept;

}  // namespace farcall::preload
