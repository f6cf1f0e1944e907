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
#include <mutex>
#include <new>
#include <utility>

#include "process/per_thread.hpp"
#include "process/process.hpp"
#include "wait/held_signals.hpp"

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

// What the thread has been lent, and gives back when it ends: its number may be another's then.
thread_local Lent* lent = nullptr;
struct Borrowed {
  ~Borrowed() {
    if (lent != nullptr) std::exchange(lent, nullptr)->give_back();
  }
  std::shared_ptr<Lent> kept;  // until the next: who sends a pulse frees nothing
};

// Of a thread that runs when no other does, whatever its nice value.
bool is_idle(int policy) noexcept {
#ifdef SCHED_IDLE
  return (policy & ~SCHED_RESET_ON_FORK) == SCHED_IDLE;
#else
  return (void)policy, false;
#endif
}

// 0: there is no such thread.
int priority_of(pid_t thread) noexcept {
  int policy = ::sched_getscheduler(thread);
  if (policy < 0) return 0;
  policy &= ~SCHED_RESET_ON_FORK;
  if (policy == SCHED_FIFO || policy == SCHED_RR) {
    sched_param parameters{};
    if (::sched_getparam(thread, &parameters) != 0) return 0;
    return kRealTime + parameters.sched_priority;
  }
  if (is_idle(policy)) return 1;
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
  // A handler that comes here may give it back.
  if (const Lent* const mine = lent; mine != nullptr && mine->over()) [[unlikely]]
    disinherit();
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

Lent::Lent() noexcept
    : generation_(process::generation()),
      thread_(own_thread()),
      policy_(::sched_getscheduler(thread_)) {
  if (policy_ < 0 || ::sched_getparam(thread_, &parameters_) != 0) policy_ = -1;
  nice_ = ::getpriority(PRIO_PROCESS, static_cast<id_t>(thread_));
}

bool Lent::raise(int priority) noexcept {
  if (policy_ < 0) return false;
  bool done = false;
  if (priority > kRealTime) {
    const sched_param raised{.sched_priority = std::min(priority - kRealTime, 99)};
    done = ::sched_setscheduler(thread_, SCHED_FIFO | SCHED_RESET_ON_FORK, &raised) == 0;
  } else {
    const int nice = kNormalPriority - priority;
    const sched_param usual{};
    // Who may not leave that policy may not take back a nice value either.
    if (is_idle(policy_) &&
        ::sched_setscheduler(thread_, SCHED_OTHER | SCHED_RESET_ON_FORK, &usual) != 0)
      return false;
    done = ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread_), nice) == 0;
    if (!done && is_idle(policy_)) ::sched_setscheduler(thread_, policy_, &parameters_);
  }
  raised_.store(done, std::memory_order_relaxed);
  return done;
}

void Lent::give_back() noexcept {
  // A handler that sends a pulse gives it back as well.
  const HeldSignals held;
  const std::lock_guard guard(lock_);
  if (!raised_.exchange(false, std::memory_order_relaxed)) return;
  // In a child it is the thread that has forked.
  const pid_t thread = generation_ == process::generation() ? thread_ : own_thread();
  // Who may not raise priorities by itself may not take this flag away either, only keep it.
  if (::sched_setscheduler(thread, policy_, &parameters_) != 0)
    ::sched_setscheduler(thread, policy_ | SCHED_RESET_ON_FORK, &parameters_);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(thread), nice_);
}

std::shared_ptr<Lent> inherit(std::uint8_t priority, pid_t process, pid_t thread) noexcept {
  disinherit();
  const int mine = own_priority();
  if (priority <= mine || !is_thread_of(thread, process)) return nullptr;
  const int wanted = std::min<int>(priority, priority_of(thread));
  if (wanted <= mine) return nullptr;
  try {
    Borrowed& borrowed = process::PerThread<Borrowed>::get();
    auto fresh = std::make_shared<Lent>();
    if (!fresh->raise(wanted)) return nullptr;
    borrowed.kept = fresh;
    lent = fresh.get();
    own.priority = static_cast<std::uint8_t>(wanted);  // what it sends meanwhile has it, too
    return fresh;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void disinherit() noexcept {
  if (lent == nullptr) [[likely]]
    return;
  // A handler may have done so meanwhile.
  if (Lent* const mine = std::exchange(lent, nullptr)) mine->give_back();
  own.priority = 0;
}

}  // namespace farcall::message
