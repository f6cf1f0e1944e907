// SPDX-License-Identifier: Apache-2.0
//
// Whether somebody else wants this processor. Where nobody does, it pays to look for the peer, or
// to give it a turn, instead of sleeping. Beside a program that computes it may not: who gives up
// its turn gets the next one when that program's time slice is over, milliseconds later, and who
// spends its time looking is soon behind it, while who sleeps is woken at once. So an account is
// kept of what waits without sleep have saved and lost. Where they lose more, a while follows in
// which nobody stays awake on that processor: many times as long as what was lost, and ever longer
// while it goes on.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "farcall/wait.hpp"

namespace farcall::preload {

// All times are in ticks (waiting.hpp). Of two threads that tell of a loss at the same time either
// is believed.
class Competition {
 public:
  static constexpr std::uint64_t kTicksPerMillisecond = 3'000'000;
  // What is shorter may be an interrupt, or a program that had a little to do.
  static constexpr std::uint64_t kLoss = kTicksPerMillisecond / 2;
  static constexpr std::uint64_t kLongest = 1000 * kTicksPerMillisecond;

  // A wait has ended without sleep, for a peer on another processor or on this one.
  void note_success(bool together) noexcept {
    const std::uint64_t saved = saved_.load(std::memory_order_relaxed);
    if (saved < kMostSaved)
      saved_.store(saved + (together ? kSavingTogether : kSaving), std::memory_order_relaxed);
  }
  // `lost` ticks until `now` this thread wanted to run and did not, or has waited for its turn.
  void note_loss(std::uint64_t now, std::uint64_t lost) noexcept {
    if (lost < kLoss) return;
    const std::uint64_t saved = saved_.load(std::memory_order_relaxed);
    saved_.store(saved - std::min(saved, lost), std::memory_order_relaxed);
    if (saved >= lost) return;
    const std::uint64_t until = until_.load(std::memory_order_relaxed);
    const std::uint64_t lasted = until - since_.load(std::memory_order_relaxed);
    // Since `until` it has been tried whether it is over.
    const bool goes_on = until != 0 && now - until < lasted + lost;
    const std::uint32_t times =
        goes_on ? std::min(2 * times_.load(std::memory_order_relaxed), kMostTimes) : kFewestTimes;
    times_.store(times, std::memory_order_relaxed);
    since_.store(now, std::memory_order_relaxed);
    until_.store(now + std::min(lost, kLongest / times) * times, std::memory_order_relaxed);
  }
  // As long as `other` lasts.
  void note_other(const Competition& other) noexcept {
    const std::uint64_t until = other.until_.load(std::memory_order_relaxed);
    if (until > until_.load(std::memory_order_relaxed))
      until_.store(until, std::memory_order_relaxed);
  }
  [[nodiscard]] bool lasts(std::uint64_t now) const noexcept { return lasts(until(), now); }
  // A clock that has been set back is no reason to wait for it, nor is what a peer claims.
  [[nodiscard]] static bool lasts(std::uint64_t until, std::uint64_t now) noexcept {
    return until - now - 1 < kLongest;
  }
  [[nodiscard]] std::uint64_t until() const noexcept {
    return until_.load(std::memory_order_relaxed);
  }
  [[nodiscard]] bool was_ever() const noexcept {
    return until_.load(std::memory_order_relaxed) != 0;
  }
  // Waits without sleep have lately saved more here than was lost.
  [[nodiscard]] bool has_saved() const noexcept {
    return saved_.load(std::memory_order_relaxed) >= kLoss;
  }

 private:
  // What a wake-up costs: some 10 us on a virtual machine; or a switch of processes by sleeping,
  // more than by giving the turn away.
  static constexpr std::uint64_t kSaving = kTicksPerMillisecond / 100;
  static constexpr std::uint64_t kSavingTogether = kTicksPerMillisecond / 250;
  static constexpr std::uint64_t kMostSaved = 20 * kTicksPerMillisecond;
  static constexpr std::uint32_t kFewestTimes = 32;
  static constexpr std::uint32_t kMostTimes = 128;

  alignas(kFalseSharing) std::atomic<std::uint64_t> saved_{0};
  std::atomic<std::uint64_t> since_{0};
  std::atomic<std::uint64_t> until_{0};
  std::atomic<std::uint32_t> times_{kFewestTimes};
};

// This process's knowledge, by processors' numbers; those that are many apart share it.
inline constinit std::array<Competition, 64> competition{};
inline Competition& competition_for(std::uint32_t processor) noexcept {
  return competition[processor % competition.size()];
}

// Who competes on one processor is soon on another: the scheduler moves programs to where fewer
// want to run. So what was lost on one is not to be lost on each, but for those on which waits
// without sleep are known to pay.
inline constinit Competition somewhere{};

// For tests: they compete by turns, or all the time.
enum class Pretence : std::uint8_t { none, by_turns, always };
inline constinit std::atomic<Pretence> pretence{Pretence::none};
inline void pretend(Pretence how, std::uint64_t now) noexcept {
  pretence.store(how, std::memory_order_relaxed);
  somewhere.note_loss(now, Competition::kLoss);
}

}  // namespace farcall::preload
