// SPDX-License-Identifier: Apache-2.0
//
// Priorities of messages, on the scale of stplr.ko, and lending them to threads that serve.
//
//   1..40      20 minus the nice value
//   41..139    40 plus a real-time priority
//   140        SCHED_DEADLINE
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "farcall/socket.hpp"
#include "process/process_mutex.hpp"

namespace farcall::message {

inline constexpr std::uint8_t kHighestPriority = 140;
inline constexpr std::uint8_t kNormalPriority = 20;  // of a thread that nobody has made more urgent

// The calling thread's; looked up once, and again after priority_changed() and after a fork.
std::uint8_t own_priority() noexcept;
void priority_changed() noexcept;
// The calling thread's id as the kernel knows it.
pid_t own_thread() noexcept;
// Whether there is such a thread in that process, in this process's eyes.
bool is_thread_of(pid_t thread, pid_t process) noexcept;

// With what priority a message is served whose sender says to have `claimed`. Up to the normal one
// that is believed, and root is believed; else it is at most what the kernel says of that thread,
// and the normal one where it says nothing: of a thread that is not of the sender's process, or
// that cannot be seen from here. System calls, where more than the normal one is claimed.
std::uint8_t bounded_priority(std::uint8_t claimed, const Credentials& sender,
                              pid_t thread) noexcept;

// What a client lends to the thread that has received its message.
class Lent {
 public:
  Lent() noexcept;
  // By any thread: that one runs with its own priority again, unless it does already.
  void give_back() noexcept;
  [[nodiscard]] bool over() const noexcept { return !raised_.load(std::memory_order_relaxed); }
  // By that thread. False: it may not.
  bool raise(int priority) noexcept;

 private:
  std::uint64_t generation_;
  pid_t thread_;
  int policy_;
  sched_param parameters_{};
  int nice_ = 0;
  process::ProcessMutex lock_;  // while it is held the thread has not ended
  std::atomic<bool> raised_{false};
};

// The calling thread runs from now on at least with what that client says to have and, as the
// kernel knows it, has; as far as this process is permitted to do that. Null: as before.
std::shared_ptr<Lent> inherit(std::uint8_t priority, pid_t process, pid_t thread) noexcept;
// It runs with its own priority again.
void disinherit() noexcept;

}  // namespace farcall::message
