// SPDX-License-Identifier: Apache-2.0
//
// Whether the receiving half of a connection may stay unwatched between two calls of its program,
// or be so during one.
//
// It may stay unwatched when a call returns only where the next wait for it is seen by the
// library: the program has waited for it before in a receive call, in poll or select, or in an
// epoll set. A program that never did waits in a way of its own, and only the kernel can tell it.
#pragma once

#include <algorithm>
#include <utility>

#include "preload/epoll/epoll.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

// The peer has taken back what nobody came for: this side waits for a while as if it never looked.
// Each time for longer; but whoever was busy elsewhere for a moment, after many calls for which it
// came in time, is believed again.
inline void note_reclaims(Side& side) noexcept {
  constexpr std::uint32_t kLongest = 4096;
  constexpr std::uint32_t kQuickCalls = 512;
  side.reclaims_seen = side.receiver.reclaims();
  side.put_back = 0;
  side.last_probation >>= std::min(side.quick_calls / kQuickCalls, 31U);
  side.quick_calls = 0;
  side.last_probation = std::min(2 * side.last_probation + 4, kLongest);
  side.probation = side.last_probation;
}

// Whether somebody may wait for it in an epoll set who would not be told of what a call leaves in
// memory: sets belong to one process, and know of one descriptor each.
inline bool registered_elsewhere(const Side& side) noexcept {
  const pid_t by = side.registered_by.load(std::memory_order_relaxed);
  return by != 0 && ((by != own_pid() && side.processes.load(std::memory_order_relaxed) != 1) ||
                     local_references(side) > 1);
}

inline bool may_share_ring(const Side& side) noexcept {
  return !side.receiver.busy() && !side.receiver.gone_for_ever() &&
         // The sender must be there to make use of it.
         side.in().control->sender_processor.load(std::memory_order_relaxed) != 0 &&
         !(side.other_holders_unknown && local_references(side) > 1) && !registered_elsewhere(side);
}

inline bool may_stay_unwatched(Side& side, int fd, bool waits) noexcept {
  if (!may_share_ring(side) || side.stay_watched.load(std::memory_order_relaxed)) return false;
  if (side.reclaims_seen != side.receiver.reclaims()) note_reclaims(side);
  if (side.probation != 0) {
    --side.probation;
    return false;
  }
  if (!is_registered(fd) && !(waits && side.waited) && !side.polled.load(std::memory_order_relaxed))
    return false;
  return epoll_allows_wake_up(fd);
}

// Some programs take a socket out of their set before each send and put it back to wait for the
// answer, which would be there before that. Who has done so often is believed to do it again.
inline bool will_be_put_back(const Side& side) noexcept {
  constexpr std::uint8_t kOften = 8;
  return side.put_back >= kOften;
}
inline void note_put_back(Side& side) noexcept {
  if (!std::exchange(side.out_of_set, false) || will_be_put_back(side)) return;
  ++side.put_back;
}

// A program that waits by looking is served during its calls. It looks again soon after it has
// looked in vain. One that sleeps in between, in a way that the library does not see, would not be
// told of bytes that came during a call and were too many for it.
inline bool waits_by_looking(Side& side) noexcept {
  constexpr std::uint64_t kSoon = 20 * kTicksPerMicrosecond;
  constexpr std::uint32_t kLooks = 16;
  constexpr std::uint32_t kCalls = 1024;
  if (side.busy_calls == 0) {
    if (side.looks_in_vain != 0)
      side.looks_again = now_ticks() - side.looked_in_vain < kSoon ? side.looks_again + 1 : 0;
    if (side.looks_again < kLooks) return false;
    side.looks_again = 0;
    side.busy_calls = kCalls;
  }
  --side.busy_calls;
  return true;
}

inline void note_look_in_vain(Side& side) noexcept {
  side.looked_in_vain = now_ticks();
  ++side.looks_in_vain;
}

// What came after a single look in vain was waited for otherwise.
inline void note_success(Side& side) noexcept {
  if (!side.receiver.watched()) ++side.quick_calls;
  if (side.looks_in_vain == 0) return;
  if (side.looks_in_vain == 1) side.looks_again = 0;
  side.looks_in_vain = 0;
}

// The ring is looked at for as long as a system call takes, during the call only.
inline void look_briefly(Side& side) noexcept {
  constexpr unsigned kLooks = 150;
  const Ring ring = side.in();
  for (unsigned i = 0; i < kLooks; ++i) {
    if (side.receiver.may_have_news(ring) ||
        ring.control->sender_said.load(std::memory_order_relaxed) != 0)
      return;
    relax();
  }
}

// Whether the kernel was last asked something some time ago, or an epoll set has told of the
// descriptor since.
inline bool is_old(std::uint64_t asked_at, std::uint64_t now, int fd) noexcept {
  constexpr std::uint64_t kAskEvery = 20 * kTicksPerMicrosecond;
  return now - asked_at >= kAskEvery || epoll_told_since(fd, asked_at);
}

// Whether the kernel is to be asked for the end of the stream, where nothing is in the ring.
inline bool time_to_look(Side& side, int fd) noexcept {
  constexpr std::uint32_t kEmptyCallsPerLook = 64;
  const std::uint64_t now = now_ticks();
  if (++side.empty_calls % kEmptyCallsPerLook != 0 && !is_old(side.looked_at, now, fd))
    return false;
  side.looked_at = now;
  return true;
}

}  // namespace farcall::preload
