// SPDX-License-Identifier: Apache-2.0
//
// A lock for memory that several processes share, any of which may be killed while it holds it.
#pragma once

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>

#include <atomic>
#include <cstdint>

#include "farcall/wait.hpp"
#include "preload/deferred_signals.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

// The kernel's number of this thread, known without a system call after the first time.
inline thread_local constinit std::uint32_t known_thread = 0;
inline std::uint32_t this_thread() noexcept {
  if (known_thread == 0) [[unlikely]]
    known_thread = static_cast<std::uint32_t>(kernel(SYS_gettid));
  return known_thread;
}

// Whether the process or the thread of that number has ended.
bool is_dead(std::uint32_t thread) noexcept;

// Held for as long as it takes to copy, never while waiting for anybody. No signal handler runs in
// a thread that holds one.
class Lock {
 public:
  // False if this very thread holds it: then this handles a fault in the middle of it.
  bool lock() noexcept {
    enter_section();
    std::uint32_t holder = 0;
    if (take_from(holder)) [[likely]]
      return true;
    if (lock_slowly()) return true;
    leave_section();
    return false;
  }
  // False if anybody holds it.
  bool try_lock() noexcept {
    enter_section();
    std::uint32_t holder = 0;
    if (take_from(holder)) return true;
    leave_section();
    return false;
  }
  void unlock() noexcept {
    holder_.store(0, std::memory_order_release);
    leave_section();
  }
  // In a child, of one that is not shared: a thread that only the parent has may have held it.
  void renew() noexcept {
    if (holder_.load(std::memory_order_relaxed) != 0) holder_.store(0, std::memory_order_relaxed);
  }

 private:
  bool lock_slowly() noexcept;
  // Whether this thread has it now, in the place of `holder`: of nobody (0), or of one that has
  // died. Otherwise tells in `holder` who has it.
  bool take_from(std::uint32_t& holder) noexcept {
    // acquire: pairs with the release in unlock()
    return holder_.compare_exchange_strong(holder, this_thread(), std::memory_order_acquire,
                                           std::memory_order_relaxed);
  }

  std::atomic<std::uint32_t> holder_{0};
};

class Guard {
 public:
  explicit Guard(Lock& lock) noexcept : lock_(lock), held_(lock.lock()) {}
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() { unlock(); }
  explicit operator bool() const noexcept { return held_; }
  void unlock() noexcept {
    if (held_) lock_.unlock();
    held_ = false;
  }
  bool lock() noexcept { return held_ = lock_.lock(); }
  bool try_lock() noexcept { return held_ = lock_.try_lock(); }

 private:
  Lock& lock_;
  bool held_;
};

}  // namespace farcall::preload
