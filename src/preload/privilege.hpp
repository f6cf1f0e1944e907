// SPDX-License-Identifier: Apache-2.0
//
// Leaving connections to the kernel as a whole process: before it becomes somebody else, goes
// where the library cannot follow it, or confines itself to the system calls that it makes.
#pragma once

namespace farcall::preload {

// All sockets that this process has now. Those that it opens later may be accelerated.
void leave_connections() noexcept;
// Also the memory that this process shares with its parent, or with children: it becomes somebody
// else, and who has less rights could harm who has more. Where other threads are running they keep
// it.
void leave_relatives() noexcept;
// And none is accelerated from now on: what the program does with them is not seen any more.
void leave_for_good() noexcept;
// Before a process is made with these flags of clone(), or this one gives up what they name.
void leave_for_flags(unsigned long flags) noexcept;
// In a child that was made with them, when it knows that it is one.
void forget_for_flags(unsigned long flags) noexcept;
// And the library makes no system call from now on that the program would not make.
void confine() noexcept;
[[nodiscard]] bool is_confined() noexcept;

}  // namespace farcall::preload
