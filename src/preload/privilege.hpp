// SPDX-License-Identifier: Apache-2.0
//
// Leaving connections to the kernel as a whole process: before it becomes somebody else, goes
// where the library cannot follow it, or confines itself to the system calls that it makes.
#pragma once

namespace farcall::preload {

// All sockets that this process has now. Those that it opens later may be accelerated.
void leave_connections() noexcept;
// And none is accelerated from now on: what the program does with them is not seen any more.
void leave_for_good() noexcept;
// And the library makes no system call from now on that the program would not make.
void confine() noexcept;
[[nodiscard]] bool is_confined() noexcept;

}  // namespace farcall::preload
