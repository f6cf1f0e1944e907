// SPDX-License-Identifier: Apache-2.0
//
// Numbers that are free, for several threads and processes at a time, without a lock: any of them
// may be killed in the middle, and one number is lost at most.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace farcall::preload {

// Of numbers below kMost. In zeroed memory none is free.
template <std::uint32_t kMost>
class FreeList {
 public:
  // kMost: none is free.
  std::uint32_t take() noexcept {
    // acquire: pairs with the release in put(), of this number and of those behind it.
    std::uint64_t first = first_.load(std::memory_order_acquire);
    for (;;) {
      const auto found = static_cast<std::uint32_t>(first);
      if (found == 0 || found > kMost) return kMost;
      const std::uint64_t rest = next_[found - 1].load(std::memory_order_relaxed);
      if (first_.compare_exchange_weak(first, changed(first) | rest, std::memory_order_relaxed,
                                       std::memory_order_acquire))
        return found - 1;
    }
  }
  void put(std::uint32_t number) noexcept {
    std::uint64_t first = first_.load(std::memory_order_relaxed);
    do next_[number].store(static_cast<std::uint32_t>(first), std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(first, changed(first) | (number + 1),
                                         std::memory_order_release, std::memory_order_relaxed));
  }

 private:
  // Counted, since a number that was taken and put back meanwhile has another one behind it.
  static constexpr std::uint64_t changed(std::uint64_t first) noexcept {
    return ((first >> 32) + 1) << 32;
  }

  std::atomic<std::uint64_t> first_;  // the changes, and the first free number plus one
  std::array<std::atomic<std::uint32_t>, kMost> next_;
};

}  // namespace farcall::preload
