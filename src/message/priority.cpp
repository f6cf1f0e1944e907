// SPDX-License-Identifier: Apache-2.0
#include "message/priority.hpp"

#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "process/process.hpp"

namespace farcall::message {
namespace {

constexpr int kRealTime = 40;
constexpr int kDeadline = kHighestPriority;

struct Own {
  std::uint64_t generation = 0;
  pid_t thread = 0;
  std::uint8_t priority = 0;  // 0: to be looked up
};
thread_local Own own;

// What the thread gets back when it has answered.
struct Before {
  bool raised = false;
  int policy = 0;
  sched_param parameters{};
  int nice = 0;
};
thread_local Before before;

// 0: there is no such thread.
int priority_of(pid_t thread) noexcept {
  const int policy = ::sched_getscheduler(thread);
  if (policy < 0) return 0;
  if (policy == SCHED_FIFO || policy == SCHED_RR) {
    sched_param parameters{};
    if (::sched_getparam(thread, &parameters) != 0) return 0;
    return kRealTime + parameters.sched_priority;
  }
#ifdef SCHED_DEADLINE
  if (policy == SCHED_DEADLINE) return kDeadline;
#endif
  errno = 0;
  const int nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread));
  return errno != 0 ? 0 : kNormalPriority - nice;
}

void refresh() noexcept {
  if (own.generation == process::generation()) return;
  own = {.generation = process::generation(),
         .thread = static_cast<pid_t>(::syscall(SYS_gettid)),
         .priority = 0};
}

}  // namespace

pid_t own_thread() noexcept {
  refresh();
  return own.thread;
}

std::uint8_t own_priority() noexcept {
  refresh();
  if (own.priority == 0) [[unlikely]]
    own.priority = static_cast<std::uint8_t>(std::clamp(priority_of(own.thread), 1, kDeadline));
  return own.priority;
}

void priority_changed() noexcept { own.priority = 0; }

bool is_thread_of(pid_t thread, pid_t process) noexcept {
  if (thread <= 0 || process <= 0) return false;
  if (thread == process) return true;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/task/%d", process, thread);
  struct stat file;
  return ::stat(path, &file) == 0;
}

std::uint8_t bounded_priority(std::uint8_t claimed, const Credentials& sender,
                              pid_t thread) noexcept {
  claimed = std::min(claimed, kHighestPriority);
  if (claimed <= kNormalPriority || sender.uid == 0) return claimed;
  const int known = is_thread_of(thread, sender.pid) ? priority_of(thread) : 0;
  return static_cast<std::uint8_t>(std::clamp<int>(known, kNormalPriority, claimed));
}

void inherit(std::uint8_t priority, pid_t process, pid_t thread) noexcept {
  disinherit();
  const int mine = own_priority();
  if (priority <= mine || !is_thread_of(thread, process)) return;
  const int wanted = std::min<int>(priority, priority_of(thread));
  if (wanted <= mine) return;
  const pid_t self = own_thread();
  Before now;
  now.policy = ::sched_getscheduler(self);
  if (now.policy < 0 || ::sched_getparam(self, &now.parameters) != 0) return;
  now.nice = ::getpriority(PRIO_PROCESS, static_cast<id_t>(self));
  if (wanted > kRealTime) {
    const sched_param raised{.sched_priority = std::min(wanted - kRealTime, 99)};
    now.raised = ::sched_setscheduler(self, SCHED_FIFO | SCHED_RESET_ON_FORK, &raised) == 0;
  } else {
    now.raised =
        ::setpriority(PRIO_PROCESS, static_cast<id_t>(self), kNormalPriority - wanted) == 0;
  }
  if (!now.raised) return;
  before = now;
  own.priority = static_cast<std::uint8_t>(wanted);  // what it sends meanwhile has it, too
}

void disinherit() noexcept {
  if (!before.raised) [[likely]]
    return;
  before.raised = false;
  const pid_t self = own_thread();
  // Who may not raise priorities by itself may not take this flag away either, only keep it.
  if (::sched_setscheduler(self, before.policy, &before.parameters) != 0)
    ::sched_setscheduler(self, before.policy | SCHED_RESET_ON_FORK, &before.parameters);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(self), before.nice);
  own.priority = 0;
}

}  // namespace farcall::message
