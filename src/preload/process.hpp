// SPDX-License-Identifier: Apache-2.0
//
// Programs that are executed and processes that are made, by whatever call.
#pragma once

#include <sched.h>

#include <cerrno>

#include "observe/tap.hpp"
#include "preload/fork.hpp"
#include "preload/privilege.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

// Makes the kernel's everything that a program would inherit that is about to be executed.
void hand_back_inherited() noexcept;

// For who ends without exit(3), or executes another program: then nothing else waits. One that has
// left before may have forbidden itself to.
inline void leave_and_be_read(Leaving how) noexcept {
  if (leave_process(how)) observe::wait_to_be_read();
}

// Around the execution of a program in this process, which returns only if it fails.
template <class Execute>
int execute(Execute call) {
  hand_back_inherited();
  const bool own = in_own_process();
  if (own) leave_and_be_read(Leaving::executes);
  const int result = call();
  const int error = errno;
  if (own) stay_in_process();
  errno = error;
  return result;
}

// Where the new process has memory and a number of its own.
inline constexpr unsigned long kSharesMemory = CLONE_VM | CLONE_VFORK;

// A clone() by a bare call, of which the child goes on where its parent does.
template <class Make>
long clone_by(unsigned long flags, Make make) noexcept {
  const long child = fork_by(make);
  if (child == 0) forget_for_flags(flags);
  return child;
}

// Threads share the descriptors of their process, and so does this library's table.
inline unsigned long flags_to_leave_for(unsigned long flags) noexcept {
  return (flags & CLONE_VM) != 0 ? flags & ~static_cast<unsigned long>(CLONE_FILES) : flags;
}

}  // namespace farcall::preload
