// SPDX-License-Identifier: Apache-2.0
//
// Priorities of messages, on the scale of stplr.ko, and lending them to threads that serve.
//
//   1..40      20 minus the nice value
//   41..139    40 plus a real-time priority
//   140        SCHED_DEADLINE
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace farcall::message {

inline constexpr std::uint8_t kHighestPriority = 140;

// The calling thread's; looked up once, and again after priority_changed() and after a fork.
std::uint8_t own_priority() noexcept;
void priority_changed() noexcept;
// The calling thread's id as the kernel knows it.
pid_t own_thread() noexcept;
// Whether there is such a thread in that process, in this process's eyes.
bool is_thread_of(pid_t thread, pid_t process) noexcept;

// The calling thread runs from now on at least with what that client says to have and, as the
// kernel knows it, has; as far as this process is permitted to do that.
void inherit(std::uint8_t priority, pid_t process, pid_t thread) noexcept;
// It runs with its own priority again.
void disinherit() noexcept;

}  // namespace farcall::message
