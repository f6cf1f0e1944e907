// SPDX-License-Identifier: Apache-2.0
//
// What looking for a peer may cost. The kernel finds a unix socket by its number among all there
// are on the machine, so with many thousands of them one look takes as long as many calls do.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "preload/waiting.hpp"

namespace farcall::preload {

// Time for looks. It is earned all the while, and spent by looks; without any there are none.
class LookBudget {
 public:
  [[nodiscard]] bool allows() const noexcept {
    const std::int64_t left = left_.load(std::memory_order_relaxed);
    return left > 0 || left + earned(now_ns()) > 0;
  }

  // Calls look(), and counts what it took. Threads that do so at once may be counted as one.
  template <class Look>
  void spend(Look look) noexcept {
    const std::int64_t began = now_ns();
    look();
    const std::int64_t ended = now_ns();
    const std::int64_t had = std::min(kMost, left_.load(std::memory_order_relaxed) + earned(began));
    left_.store(had - std::min(ended - began, kLongest), std::memory_order_relaxed);
    since_.store(ended, std::memory_order_relaxed);
  }

 private:
  static constexpr std::int64_t kMost = 500'000'000;
  static constexpr std::int64_t kShare = 10;  // of the time, one part in so many
  // What took longer had not the processor all the while.
  static constexpr std::int64_t kLongest = kMost / 10;

  [[nodiscard]] std::int64_t earned(std::int64_t now) const noexcept {
    return std::max<std::int64_t>(now - since_.load(std::memory_order_relaxed), 0) / kShare;
  }

  std::atomic<std::int64_t> left_{kMost};
  std::atomic<std::int64_t> since_{0};
};

}  // namespace farcall::preload
