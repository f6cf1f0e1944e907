// SPDX-License-Identifier: Apache-2.0
//
// A mutex that a forked child finds free, whoever held it in its parent: that thread does not exist
// in the child, and would never unlock it. What it protects may have been left half-written; so
// data that a child may meet carries its own generation, too, and counts as absent where that is
// not the child's.
//
//   word   bits 31..2                      1..0
//          generation of who locked it     free, held, held and waited for
//
// Who does not get it after a few looks sleeps on a futex, so that a holder of lower priority runs
// on, on the same processor, too.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "farcall/wait.hpp"
#include "process/process.hpp"

namespace farcall::process {

class ProcessMutex {
 public:
  ProcessMutex() noexcept = default;
  ProcessMutex(const ProcessMutex&) = delete;
  ProcessMutex& operator=(const ProcessMutex&) = delete;

  void lock() noexcept {
    if (!attempt(std::memory_order_relaxed)) [[unlikely]]
      lock_slowly();
  }
  // seq_cst, here and in unlock(): of two threads of which one unlocks and then looks at what the
  // other says, and the other says so and then tries to lock, at least one sees the other. So a
  // look that finds it held counts as well.
  bool try_lock() noexcept { return attempt(std::memory_order_seq_cst); }
  void unlock() noexcept {
    const std::uint32_t mine = own();
    // Locked before a fork that its own holder has made, in a signal handler.
    if ((word_.load(std::memory_order_relaxed) & ~kState) != mine) [[unlikely]]
      return;
    if ((word_.exchange(mine, std::memory_order_seq_cst) & kState) == kAwaited) [[unlikely]]
      ::syscall(SYS_futex, &word_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  }

 private:
  static constexpr std::uint32_t kState = 3;
  static constexpr std::uint32_t kHeld = 1;
  static constexpr std::uint32_t kAwaited = 2;
  static constexpr int kLooks = 100;

  static std::uint32_t own() noexcept { return static_cast<std::uint32_t>(generation()) << 2; }
  static bool is_free(std::uint32_t seen, std::uint32_t mine) noexcept {
    return (seen & ~kState) != mine || (seen & kState) == 0;
  }
  bool attempt(std::memory_order look) noexcept {
    std::uint32_t seen = word_.load(look);
    const std::uint32_t mine = own();
    while (is_free(seen, mine))
      if (word_.compare_exchange_weak(seen, mine | kHeld, std::memory_order_seq_cst)) return true;
    return false;
  }
  [[gnu::noinline]] void lock_slowly() noexcept {
    for (int i = 0; i < kLooks; ++i) {
      relax();
      if (attempt(std::memory_order_relaxed)) return;
    }
    const std::uint32_t mine = own();
    for (;;) {
      std::uint32_t seen = word_.load(std::memory_order_relaxed);
      // Whoever has slept does not know whether others do, and has them woken.
      if (is_free(seen, mine)) {
        if (word_.compare_exchange_weak(seen, mine | kAwaited, std::memory_order_seq_cst)) return;
        continue;
      }
      if ((seen & kState) != kAwaited &&
          !word_.compare_exchange_weak(seen, mine | kAwaited, std::memory_order_relaxed))
        continue;
      ::syscall(SYS_futex, &word_, FUTEX_WAIT_PRIVATE, mine | kAwaited, nullptr, nullptr, 0);
    }
  }

  std::atomic<std::uint32_t> word_{0};
};

}  // namespace farcall::process
