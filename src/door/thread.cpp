// SPDX-License-Identifier: Apache-2.0
//
// <thread.h>: Solaris threads made of pthreads. Threads of thr_create() are remembered, because
// pthreads can neither wait for whichever ends next, nor start a thread later, nor let a process
// end while threads are left.
#include "farcall/compat/thread.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "door/changes.hpp"
#include "process/process.hpp"
#include "wait/held_signals.hpp"

namespace farcall::door {
namespace {

constexpr long kThreadFlags = THR_BOUND | THR_NEW_LWP | THR_DETACHED | THR_SUSPENDED | THR_DAEMON;

struct Thread {
  void* (*start)(void*);
  void* argument;
  bool joinable;
  bool daemon;
  bool suspended;
  sigset_t signals{};    // what it blocks: as its maker
  bool ended = false;    // its function is over; the thread may live a moment longer
  bool joining = false;  // somebody waits for it
  pid_t task = 0;        // once it runs
  pthread_t id{};
};

// Threads of thr_create(): joinable ones until they are joined, others until they end.
struct Threads {
  std::mutex lock;  // protects all; held around a fork, so taken by Locked
  Changes changes;
  std::list<Thread> all;
  std::list<Thread> of_parents;  // whom a fork has left behind
  bool main_left = false;        // by thr_exit()

  Thread* find(pthread_t id) {
    const auto found = std::find_if(all.begin(), all.end(), [&](const Thread& thread) {
      return ::pthread_equal(thread.id, id) != 0 && (thread.joinable || !thread.ended);
    });
    return found == all.end() ? nullptr : &*found;
  }
  void forget(const Thread* gone) {
    all.remove_if([&](const Thread& thread) { return &thread == gone; });
  }
};

constinit process::MadeOnce<Threads> made_threads;
Threads& threads() { return made_threads.get(); }

// No handler comes between: it may fork.
class Locked {
 public:
  explicit Locked(Threads& all) : all_(all) { lock(); }
  ~Locked() {
    if (held_) unlock();
  }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

  void unlock() {
    all_.lock.unlock();
    held_.reset();
  }
  template <class Condition>
  void wait(Condition condition) {
    while (!condition()) {
      Changes::Waiter waiter(all_.changes);
      const Outside outside(*this);
      waiter.wait();
    }
  }
  [[nodiscard]] const sigset_t* signals_before() const noexcept { return held_->before(); }

 private:
  // Without the lock meanwhile, and with the thread's own signals, however that ends.
  class Outside {
   public:
    explicit Outside(Locked& locked) : locked_(locked) { locked_.unlock(); }
    ~Outside() { locked_.lock(); }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Locked& locked_;
  };

  void lock() {
    held_.emplace();
    all_.lock.lock();
  }

  Threads& all_;
  std::optional<HeldSignals> held_;
};

void lock_threads() { threads().lock.lock(); }
void unlock_threads() { threads().lock.unlock(); }
// In a child only the thread that forked is left. Nothing is allocated or freed: to a child of
// _Fork() another thread may have left the allocator locked.
void forget_others() {
  Threads* const here = made_threads.made();
  if (here == nullptr) return;
  for (auto each = here->all.begin(); each != here->all.end();) {
    const auto thread = each++;
    if (::pthread_equal(thread->id, ::pthread_self()) == 0)
      here->of_parents.splice(here->of_parents.end(), here->all, thread);
    else
      thread->task = ::gettid();
  }
  here->main_left = false;  // it is the main one now
  here->changes.forget_others();
  process::free_in_child(here->lock);
}

[[maybe_unused]] const bool kRegistered = [] {
  process::around_fork(process::ForkOrder::above_call, &lock_threads, &unlock_threads,
                       &forget_others);
  return true;
}();

bool is_zombie(pid_t task) {
  std::ifstream stat("/proc/self/task/" + std::to_string(task) + "/stat");
  std::string line;
  std::getline(stat, line);
  const auto name_end = line.rfind(')');  // a thread's name may hold anything
  return name_end == std::string::npos || line.size() < name_end + 3 || line[name_end + 2] == 'Z' ||
         line[name_end + 2] == 'X';
}

// Whether every thread of the process is a daemon, has ended, or is the caller. Holds the lock.
bool only_daemons_are_left(const Threads& all) {
  DIR* const tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return false;
  bool only_daemons = true;
  while (const dirent* const entry = ::readdir(tasks)) {
    const pid_t task = std::atoi(entry->d_name);
    if (task == 0 || task == ::gettid() || (task == ::getpid() && all.main_left)) continue;
    const bool known = std::any_of(all.all.begin(), all.all.end(), [&](const Thread& thread) {
      return thread.task == task && (thread.daemon || thread.ended);
    });
    if (!known && !is_zombie(task)) only_daemons = false;
  }
  ::closedir(tasks);
  return only_daemons;
}

// A process ends with the last thread that is no daemon.
void end_process_if_last() {
  const auto daemons_alone = [] {
    Threads& all = threads();
    const Locked guard(all);
    bool daemons = false;
    for (const Thread& thread : all.all) {
      if (!thread.ended && !thread.daemon) return -1;
      daemons |= thread.daemon;
    }
    // Without daemons the C library does all.
    return !daemons ? -1 : only_daemons_are_left(all) ? 1 : 0;
  };
  // A thread that has just ended is still listed for a moment.
  constexpr int kTries = 20;
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 5'000'000};
  for (int i = 0; i < kTries; ++i) {
    const int answer = daemons_alone();
    if (answer < 0) return;
    if (answer > 0) std::exit(0);
    ::nanosleep(&kPause, nullptr);
  }
}

// Its destructor runs however the thread ends: by return, thr_exit() or cancellation.
struct Ending {
  Thread* thread = nullptr;
  Ending() = default;
  Ending(const Ending&) = delete;
  Ending& operator=(const Ending&) = delete;
  ~Ending() {
    if (thread == nullptr) return;
    Threads& all = threads();
    const bool daemon = thread->daemon;
    {
      const Locked guard(all);
      thread->ended = true;
      if (!thread->joinable) all.forget(thread);
      all.changes.happen();
    }
    if (!daemon) end_process_if_last();
  }
};
thread_local Ending ending;

void* run(void* argument) {
  auto* const self = static_cast<Thread*>(argument);
  ending.thread = self;
  ::pthread_sigmask(SIG_SETMASK, &self->signals, nullptr);
  Threads& all = threads();
  {
    Locked guard(all);  // thr_create() holds it until all is filled in
    self->task = ::gettid();
    all.changes.happen();
    guard.wait([&] { return !self->suspended; });
  }
  return self->start(self->argument);
}

struct Attributes {
  pthread_attr_t attributes;
  int error = ::pthread_attr_init(&attributes);

  Attributes() = default;
  Attributes(const Attributes&) = delete;
  Attributes& operator=(const Attributes&) = delete;
  ~Attributes() {
    if (error == 0) ::pthread_attr_destroy(&attributes);
  }
};

int create(void* stack, std::size_t size, const Thread& thread, pthread_t* id) {
  Attributes with;
  if (with.error != 0) return with.error;
  int error = 0;
  if (stack != nullptr)
    error = ::pthread_attr_setstack(&with.attributes, stack, size);
  else if (size != 0)
    error = ::pthread_attr_setstacksize(&with.attributes, size);
  if (error != 0) return error;
  if (!thread.joinable) ::pthread_attr_setdetachstate(&with.attributes, PTHREAD_CREATE_DETACHED);

  Threads& all = threads();
  Locked guard(all);
  Thread& kept = all.all.emplace_back(thread);
  kept.signals = *guard.signals_before();
  error = ::pthread_create(&kept.id, &with.attributes, &run, &kept);
  if (error != 0) {
    all.forget(&kept);
    return error;
  }
  if (id != nullptr) *id = kept.id;
  // So that whoever ends next knows this one for a daemon.
  if (thread.daemon) {
    int old = 0;
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    guard.wait([&, made = kept.id] {
      const Thread* const found = all.find(made);
      return found == nullptr || found->task != 0;
    });
    ::pthread_setcancelstate(old, nullptr);
  }
  return 0;
}

// Waits for a thread of ours whose record says `joining`, and says so no more if it is cancelled.
class Joining {
 public:
  explicit Joining(Thread* thread) : thread_(thread) { thread_->joining = true; }
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;
  ~Joining() {
    Threads& all = threads();
    const Locked guard(all);
    thread_->joining = false;
    if (joined_)
      all.forget(thread_);
    else
      all.changes.happen();  // it may have ended
  }
  int join(void** status) {
    const int error = ::pthread_join(thread_->id, status);
    joined_ = error == 0;
    return error;
  }

 private:
  Thread* thread_;
  bool joined_ = false;
};

// Whether there may be such a thread of pthread_create(). The memory of one that was joined is
// mostly kept, and the C library knows it; where it has been given back nobody may look.
bool may_exist(pthread_t thread) noexcept {
  const auto page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto page = static_cast<std::uintptr_t>(thread) / page_size * page_size;
  return ::msync(reinterpret_cast<void*>(page), page_size, MS_ASYNC) == 0;
}

// A thread that has ended, or may not be looked at, is none.
bool is_alive(pthread_t thread) noexcept {
  clockid_t clock{};
  return ::pthread_equal(thread, ::pthread_self()) != 0 ||
         (may_exist(thread) && ::pthread_getcpuclockid(thread, &clock) == 0);
}

// The next thread that ends; null where there is none to wait for.
Thread* await_any(Threads& all, Locked& guard) {
  Thread* found = nullptr;
  guard.wait([&] {
    bool waiting = false;
    for (Thread& thread : all.all) {
      if (!thread.joinable || thread.joining || ::pthread_equal(thread.id, ::pthread_self()) != 0)
        continue;
      if (thread.ended) {
        found = &thread;
        return true;
      }
      waiting = true;
    }
    return !waiting;
  });
  return found;
}

}  // namespace
}  // namespace farcall::door

using namespace farcall::door;

extern "C" {

int thr_create(void* stack, size_t size, void* (*start)(void*), void* argument, long flags,
               thread_t* thread) {
  if ((flags & ~kThreadFlags) != 0 || start == nullptr) return EINVAL;
  // What runs on 8 KiB there needs more here, for TLS and for signal frames with all registers.
  constexpr std::size_t kLeastOnSolaris = 4096;
  constexpr std::size_t kMoreStack = std::size_t{64} << 10;
  if (stack != nullptr && size < thr_min_stack()) return EINVAL;
  if (stack == nullptr && size != 0 &&
      (size < kLeastOnSolaris || __builtin_add_overflow(size, kMoreStack, &size)))
    return EINVAL;
  const bool daemon = (flags & THR_DAEMON) != 0;
  try {
    return create(stack, size,
                  {.start = start,
                   .argument = argument,
                   .joinable = !daemon && (flags & THR_DETACHED) == 0,
                   .daemon = daemon,
                   .suspended = (flags & THR_SUSPENDED) != 0},
                  thread);
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  }
}

int thr_join(thread_t thread, thread_t* departed, void** status) {
  if (thread != 0 && ::pthread_equal(thread, ::pthread_self()) != 0) return EDEADLK;
  Threads& all = threads();
  Locked guard(all);
  Thread* const found = thread == 0 ? await_any(all, guard) : all.find(thread);
  int error = 0;
  if (found != nullptr) {
    if (!found->joinable || found->joining) return ESRCH;
    thread = found->id;
    Joining joining(found);
    guard.unlock();
    error = joining.join(status);
  } else {
    guard.unlock();
    error = thread == 0 || !may_exist(thread) ? ESRCH : ::pthread_join(thread, status);
    if (error == EINVAL) error = ESRCH;  // it is detached
  }
  if (error == 0 && departed != nullptr) *departed = thread;
  return error;
}

void thr_exit(void* status) {
  if (thr_main() != 0) {
    {
      const Locked guard(threads());
      threads().main_left = true;
    }
    end_process_if_last();
  }
  ::pthread_exit(status);
}

thread_t thr_self(void) { return ::pthread_self(); }
int thr_main(void) { return ::gettid() == ::getpid() ? 1 : 0; }
void thr_yield(void) { ::sched_yield(); }
// For signal handlers as well: without the lock.
int thr_kill(thread_t thread, int signal) {
  return is_alive(thread) ? ::pthread_kill(thread, signal) : ESRCH;
}
int thr_sigsetmask(int how, const __sigset_t* set, __sigset_t* old) {
  return ::pthread_sigmask(how, set, old);
}

int thr_continue(thread_t thread) {
  Threads& all = threads();
  const Locked guard(all);
  Thread* const found = all.find(thread);
  if (found == nullptr || found->ended) return ESRCH;
  found->suspended = false;
  all.changes.happen();
  return 0;
}

int thr_suspend(thread_t thread) {
  Threads& all = threads();
  const Locked guard(all);
  const Thread* const found = all.find(thread);
  if (found == nullptr || found->ended) return ESRCH;
  return found->suspended ? 0 : ENOTSUP;
}

int thr_setconcurrency(int level) { return ::pthread_setconcurrency(level); }
int thr_getconcurrency(void) { return ::pthread_getconcurrency(); }
int thr_setprio(thread_t thread, int priority) {
  return is_alive(thread) ? ::pthread_setschedprio(thread, priority) : ESRCH;
}
int thr_getprio(thread_t thread, int* priority) {
  if (!is_alive(thread)) return ESRCH;
  int policy = 0;
  sched_param parameters{};
  const int error = ::pthread_getschedparam(thread, &policy, &parameters);
  if (error == 0) *priority = parameters.sched_priority;
  return error;
}

int thr_keycreate(thread_key_t* key, void (*destructor)(void*)) {
  return ::pthread_key_create(key, destructor);
}
int thr_keycreate_once(thread_key_t* key, void (*destructor)(void*)) {
  std::atomic_ref<thread_key_t> shared(*key);
  // acquire: who sees the key may use it.
  thread_key_t seen = shared.load(std::memory_order_acquire);
  if (seen != THR_ONCE_KEY) return 0;
  thread_key_t made = 0;
  const int error = ::pthread_key_create(&made, destructor);
  if (error == 0 && !shared.compare_exchange_strong(seen, made, std::memory_order_acq_rel))
    ::pthread_key_delete(made);  // another thread was first
  return error;
}
int thr_setspecific(thread_key_t key, void* value) { return ::pthread_setspecific(key, value); }
int thr_getspecific(thread_key_t key, void** value) {
  *value = ::pthread_getspecific(key);
  return 0;
}

size_t thr_min_stack(void) { return static_cast<size_t>(::sysconf(_SC_THREAD_STACK_MIN)); }

int thr_stksegment(stack_t* stack) {
  Attributes of;
  if (of.error != 0) return of.error;
  ::pthread_attr_destroy(&of.attributes);
  of.error = ::pthread_getattr_np(::pthread_self(), &of.attributes);
  if (of.error != 0) return of.error;
  void* lowest = nullptr;
  std::size_t size = 0;
  ::pthread_attr_getstack(&of.attributes, &lowest, &size);
  *stack = {.ss_sp = static_cast<char*>(lowest) + size, .ss_flags = 0, .ss_size = size};
  return 0;
}

}  // extern "C"
