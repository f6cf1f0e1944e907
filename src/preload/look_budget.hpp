// SPDX-License-Identifier: Apache-2.0
//
// What looking for a peer may cost. The kernel finds a unix socket by its number among all there
// are on the machine, so with many thousands of them one look takes as long as many calls do.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "preload/real.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

// Looks that took long are followed by a pause in which there are none.
class LookBudget {
 public:
  [[nodiscard]] bool allows() const noexcept {
    const std::int64_t end = pause_end_.load(std::memory_order_relaxed);
    return end == 0 || now_ns() >= end;
  }

  // Calls look(), and counts what it took of this thread's processor time.
  template <class Look>
  void spend(Look look) noexcept {
    const std::int64_t began = thread_time();
    look();
    const std::int64_t took = thread_time() - began;
    if (took >= kLong)
      pause_end_.store(now_ns() + kShare * took, std::memory_order_relaxed);
    else if (pause_end_.load(std::memory_order_relaxed) != 0)
      pause_end_.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kLong = 500'000;
  static constexpr std::int64_t kShare = 10;  // of the time, one part in so many

  static std::int64_t thread_time() noexcept {
    timespec time{};
    kernel(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  }

  std::atomic<std::int64_t> pause_end_{0};
};

}  // namespace farcall::preload
