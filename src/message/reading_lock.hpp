// SPDX-License-Identifier: Apache-2.0
//
// A lock that a signal handler may take for reading, whatever it has interrupted: who reads waits
// for nobody who reads, and who may have interrupted such a one, in its own thread, nor for who
// waits to write. Who writes holds signals back.
//
//   word   63..32 generation of the process   31..2 how many read   1 somebody is to write   0
//   writes
//
// A forked child finds it free, as it does a ProcessMutex: whoever reads or writes there has begun
// in its parent.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>

#include "farcall/wait.hpp"
#include "process/process.hpp"
#include "wait/held_signals.hpp"

namespace farcall::message {

class ReadingLock {
 public:
  ReadingLock() noexcept = default;
  ReadingLock(const ReadingLock&) = delete;
  ReadingLock& operator=(const ReadingLock&) = delete;

  // `inside`: this thread may be reading already. Returns the process that reads, for
  // unlock_shared(): a handler may fork at any moment.
  std::uint32_t lock_shared(bool inside) noexcept {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      const std::uint64_t now = of_this_process(seen);
      if ((now & (inside ? kWritten : kWritten | kAwaited)) == 0) [[likely]] {
        if (word_.compare_exchange_weak(seen, now + kOneReads, std::memory_order_acquire,
                                        std::memory_order_relaxed)) [[likely]] {
          if (is_own(now)) [[likely]]
            return static_cast<std::uint32_t>(now >> 32);
          seen = word_.load(std::memory_order_relaxed);
        }
      } else {
        sleep(now);
        seen = word_.load(std::memory_order_relaxed);
      }
    }
  }
  // In a child of the process that has locked it nobody reads.
  void unlock_shared(std::uint32_t process) noexcept {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    while (seen >> 32 == process && is_own(seen))
      if (word_.compare_exchange_weak(seen, seen - kOneReads, std::memory_order_release,
                                      std::memory_order_relaxed))
        return;
  }

  void lock() noexcept {
    for (int looks = 0;; ++looks) {
      std::uint64_t seen = word_.load(std::memory_order_relaxed);
      const std::uint64_t now = of_this_process(seen);
      if ((now & kHeld) == 0) {
        if (word_.compare_exchange_weak(seen, now | kWritten, std::memory_order_acquire,
                                        std::memory_order_relaxed))
          return;
      } else if (looks < kLooks) {
        relax();
      } else if ((now & kAwaited) != 0 ||
                 word_.compare_exchange_weak(seen, now | kAwaited, std::memory_order_relaxed)) {
        sleep(now | kAwaited);
      }
    }
  }
  // Waits for nobody.
  bool try_lock() noexcept {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    const std::uint64_t now = of_this_process(seen);
    return (now & kHeld) == 0 &&
           word_.compare_exchange_strong(seen, now | kWritten, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // Who else waits to write says so again.
  void unlock() noexcept {
    word_.store(own(), std::memory_order_release);
    ::syscall(SYS_futex, futex(), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
  }

 private:
  static_assert(std::endian::native == std::endian::little);
  static constexpr std::uint64_t kWritten = 1;
  static constexpr std::uint64_t kAwaited = 2;
  static constexpr std::uint64_t kOneReads = 4;
  static constexpr std::uint64_t kHeld = UINT32_MAX & ~kAwaited;
  static constexpr int kLooks = 100;

  static std::uint64_t own() noexcept { return process::generation() << 32; }
  static bool is_own(std::uint64_t seen) noexcept { return (seen ^ own()) >> 32 == 0; }
  static std::uint64_t of_this_process(std::uint64_t seen) noexcept {
    const std::uint64_t mine = own();
    return (seen ^ mine) >> 32 == 0 ? seen : mine;
  }
  std::uint32_t* futex() noexcept { return reinterpret_cast<std::uint32_t*>(&word_); }
  // Who has read wakes nobody: that would take longer than to read.
  void sleep(std::uint64_t seen) noexcept {
    constexpr timespec kTurn{.tv_sec = 0, .tv_nsec = 100'000};
    ::syscall(SYS_futex, futex(), FUTEX_WAIT_PRIVATE, static_cast<std::uint32_t>(seen), &kTurn,
              nullptr, 0);
  }

  std::atomic<std::uint64_t> word_{0};
};

class Reading {
 public:
  explicit Reading(ReadingLock& lock) noexcept : lock_(lock) {
    const bool inside = depth_++ != 0;
    std::atomic_signal_fence(std::memory_order_seq_cst);
    process_ = lock_.lock_shared(inside);
  }
  ~Reading() {
    lock_.unlock_shared(process_);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    --depth_;
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;

 private:
  static inline thread_local constinit unsigned depth_ = 0;

  ReadingLock& lock_;
  std::uint32_t process_ = 0;
};

class Writing {
 public:
  explicit Writing(ReadingLock& lock) noexcept : guard_(lock) {}

 private:
  const HeldSignals held_;  // from before until after
  const std::lock_guard<ReadingLock> guard_;
};

}  // namespace farcall::message
