// SPDX-License-Identifier: Apache-2.0
//
// How long to stay awake for the peer before sleeping in the kernel.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "farcall/wait.hpp"
#include "observe/clock.hpp"
#include "preload/competition.hpp"
#include "preload/real.hpp"
#include "preload/signals.hpp"

namespace farcall::preload {

// Time without a unit, for "long ago?": some three to a nanosecond, on every processor; those of
// farcall::ticks() are others but on x86.
inline std::uint64_t now_ticks() noexcept {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 3'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec) * 3;
#endif
}
inline constexpr std::uint64_t kTicksPerMicrosecond = 3000;

// That of <farcall/wait.hpp> stands where this library has nothing of.
using observe::monotonic_ns;

inline std::uint32_t this_processor() noexcept {
  return static_cast<std::uint32_t>(::sched_getcpu()) + 1;
}

// Whether somebody else than the peer would have the turn that is given to it on this processor.
inline bool others_compete(std::uint32_t processor) noexcept {
  if (!somewhere.was_ever()) [[likely]]
    return false;
  const Competition& here = competition_for(processor);
  const std::uint64_t now = now_ticks();
  const Pretence pretended = pretence.load(std::memory_order_relaxed);
  if (pretended != Pretence::none) [[unlikely]]
    return pretended == Pretence::always || (now >> 20 & 3) != 0;
  return (here.was_ever() && here.lasts(now)) || (!here.has_saved() && somewhere.lasts(now));
}
// Nothing but looks, or a turn for others, has been since `before`. Returns what time it is.
inline std::uint64_t note_loss(std::uint64_t before) noexcept {
  const std::uint64_t now = now_ticks();
  if (now - before >= Competition::kLoss) {
    Competition& here = competition_for(this_processor());
    here.note_loss(now, now - before);
    somewhere.note_other(here);
  }
  return now;
}
// Lets others run on this processor. Returns how long they did.
inline std::uint64_t give_turn() noexcept {
  const std::uint64_t before = now_ticks();
  kernel(SYS_sched_yield);
  return note_loss(before) - before;
}

// What came of a wait without sleep: what was waited for, or else what it owes to a signal, whose
// handler has run by now.
struct Stayed {
  bool ready;
  Interruption interruption = Interruption::none;
  explicit operator bool() const noexcept { return ready; }
};

// What recent waits have earned; one for each thing that is waited for. The threads that wait for
// it share it: a lost count costs no more than a look.
class Patience {
 public:
  // Whether to look before the next sleep, for a peer that last ran on `peer_processor`: because
  // waits have been short, or because it is time to try. To look costs system calls on both sides,
  // so who never finds anything tries ever more rarely. Counts a wait that is not looked for.
  bool pays(std::uint32_t peer_processor) noexcept {
    const std::uint32_t here = this_processor();
    if (others_compete(here)) return false;
    if (peer_processor == here ? credit_ != 0 : expected_ns_ <= kLongestSpin) return true;
    if (trying_) return true;
    if (++since_try_ < between_tries_) return false;
    since_try_ = 0;
    trying_ = true;
    return true;
  }
  // Looks until ready() or until it is time to sleep. `peer_processor()` tells where the peer last
  // ran; on this processor it gets it, instead of being waited for.
  template <class Ready, class PeerProcessor>
  Stayed stay_awake(Ready ready, PeerProcessor peer_processor) noexcept {
    const std::uint32_t there = peer_processor();
    if (!pays(there)) {
      since_ = monotonic_ns();
      return {ready()};
    }
    const std::uint32_t here = this_processor();
    const bool trying = std::exchange(trying_, false);
    if (const Stayed stayed = stay(there == here, ready, peer_processor); !stayed) {
      if (trying) between_tries_ = std::min<std::uint16_t>(2 * between_tries_, kMostBetweenTries);
      return stayed;
    }
    if (trying) expected_ns_ = std::min(expected_ns_, kLongestSpin / 2);
    between_tries_ = kLeastBetweenTries;
    competition_for(here).note_success(there == here);
    return {true};
  }
  // Waits that nobody looks for are measured, too, as long as looking does not pay.
  void sleeps_unlooked() noexcept { since_ = expected_ns_ > kLongestSpin ? monotonic_ns() : 0; }
  // What was waited for was there already.
  void came_at_once() noexcept {
    if (expected_ns_ > kLongestSpin) learn(0);
  }
  // After sleeping: how long, where that is known, or 0.
  std::int64_t slept() noexcept {
    if (since_ == 0) return 0;
    const std::int64_t waited = monotonic_ns() - std::exchange(since_, 0);
    learn(waited);
    return waited;
  }
  // Since when it has been waited for what comes next, or 0; and how long the last wait has looked
  // for it, where that was measured.
  [[nodiscard]] std::int64_t since() const noexcept { return since_; }
  std::int64_t take_spun() noexcept { return std::exchange(spun_, 0); }

 private:
  template <class Ready, class PeerProcessor>
  Stayed stay(bool together, Ready ready, PeerProcessor peer_processor) noexcept {
    for (unsigned i = 0; i < (together ? 1 : kQuickLooks); ++i)
      if (ready()) return {true};
    if (together && credit_ == kMostCredit) {
      // To hold signals costs as much as the switch to a peer that has always answered in its turn;
      // one that comes during this turn comes as if before the call.
      const Turn turn = give_turn(ready);
      if (turn == Turn::answered) return {true};
      if (turn == Turn::taken) {
        --credit_;
        return {false};
      }
    }
    const HeldSignals held;
    if (together ? hand_over(ready) : spin(ready, peer_processor)) return {true};
    return {.ready = false, .interruption = held.interruption()};
  }
  template <class Ready, class PeerProcessor>
  bool spin(Ready ready, PeerProcessor peer_processor) noexcept {
    const std::int64_t start = monotonic_ns();
    const std::int64_t longest = std::clamp(2 * expected_ns_, kShortestSpin, kLongestSpin);
    for (std::uint64_t looked = now_ticks();; looked = note_loss(looked)) {
      for (unsigned i = 0; i < kLooksPerCheck; ++i) {
        if (ready()) {
          note_loss(looked);
          spun_ = monotonic_ns() - start;
          learn(spun_);
          return true;
        }
        relax();
      }
      if (monotonic_ns() - start >= longest || peer_processor() == this_processor()) {
        note_loss(looked);
        break;
      }
    }
    since_ = start;
    spun_ = longest;
    return false;
  }
  static constexpr unsigned kQuickLooks = 300;
  static constexpr unsigned kLooksPerCheck = 64;
  // Spinning longer than about two wake-ups of an idle processor cannot pay.
  static constexpr std::int64_t kLongestSpin = 100'000;
  static constexpr std::int64_t kShortestSpin = 2'000;
  static constexpr std::uint16_t kLeastBetweenTries = 32;
  static constexpr std::uint16_t kMostBetweenTries = 512;
  static constexpr unsigned kMostHandOvers = 8;
  static constexpr std::uint8_t kMostCredit = 4;
  static constexpr std::uint64_t kLongTurn = 50 * kTicksPerMicrosecond;

  // What came of it to give others a turn on this processor; `taken`: somebody else than the peer
  // had it.
  enum class Turn : std::uint8_t { answered, silent, taken };
  template <class Ready>
  Turn give_turn(Ready ready) noexcept {
    const std::uint64_t turn = preload::give_turn();
    if (ready()) {
      // An answer that took so long is none to this turn alone.
      credit_ = turn < Competition::kLoss ? std::min<std::uint8_t>(credit_ + 1U, kMostCredit) : 0;
      return Turn::answered;
    }
    return turn > kLongTurn ? Turn::taken : Turn::silent;
  }

  template <class Ready>
  bool hand_over(Ready ready) noexcept {
    Turn turn = Turn::silent;
    for (unsigned i = 0; i < (credit_ == 0 ? 2 : kMostHandOvers) && turn != Turn::taken; ++i) {
      if (ready()) return true;
      turn = give_turn(ready);
      if (turn == Turn::answered) return true;
    }
    if (credit_ > 0) --credit_;
    return false;
  }

  void learn(std::int64_t waited) noexcept {
    expected_ns_ += (std::min(waited, 4 * kLongestSpin) - expected_ns_) / 8;
    if (expected_ns_ <= kLongestSpin) between_tries_ = kLeastBetweenTries;
  }

  std::int64_t expected_ns_ = 20'000;
  std::int64_t since_ = 0;
  std::int64_t spun_ = 0;
  std::uint16_t since_try_ = 0;
  std::uint16_t between_tries_ = kLeastBetweenTries;
  bool trying_ = false;
  std::uint8_t credit_ = 2;
};

}  // namespace farcall::preload
