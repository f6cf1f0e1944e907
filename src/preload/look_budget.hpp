// SPDX-License-Identifier: Apache-2.0
//
// What looking for a peer may cost. The kernel finds a unix socket by its number among all there
// are on the machine, so with many thousands of them one look takes as long as many calls do.
#pragma once

#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "preload/real.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

// Processor time for looks. It is earned all the while, and spent by looks; without any there are
// none.
class LookBudget {
 public:
  [[nodiscard]] bool allows() const noexcept {
    const std::int64_t left = left_.load(std::memory_order_relaxed);
    return left > 0 || left + earned(monotonic_ns()) > 0;
  }

  // Calls look(), and counts what it took. Threads that do so at once may be counted as one.
  template <class Look>
  void spend(Look look) noexcept {
    const std::int64_t began = used();
    look();
    const std::int64_t took = used() - began;
    const std::int64_t now = monotonic_ns();
    const std::int64_t had = std::min(kMost, left_.load(std::memory_order_relaxed) + earned(now));
    left_.store(had - took, std::memory_order_relaxed);
    since_.store(now, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kMost = 50'000'000;
  static constexpr std::int64_t kShare = 50;  // of the time, one part in so many

  // By this thread: others may have the processor in the middle of a look.
  static std::int64_t used() noexcept {
    timespec time{};
    kernel(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
  }

  [[nodiscard]] std::int64_t earned(std::int64_t now) const noexcept {
    return std::max<std::int64_t>(now - since_.load(std::memory_order_relaxed), 0) / kShare;
  }

  std::atomic<std::int64_t> left_{kMost};
  std::atomic<std::int64_t> since_{0};
};

}  // namespace farcall::preload
