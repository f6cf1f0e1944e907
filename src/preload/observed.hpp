// SPDX-License-Identifier: Apache-2.0
//
// What this process tells of its connections to who may look (farcall/observe.hpp). The entry of a
// connection is in Side::Own: a forked child goes on with it, and counts from 0.
#pragma once

#include <sys/socket.h>

#include <algorithm>

#include "observe/tap.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

observe::Address observed_address(const Endpoint& endpoint) noexcept;

// 0 is none.
inline std::uint8_t observed_reason(Reason reason) noexcept {
  return static_cast<std::uint8_t>(static_cast<unsigned>(reason) + 1);
}

// A connection that may be accelerated.
void observe_candidate(int fd, Side& side, const sockaddr* peer, socklen_t size) noexcept;
// It is, through this memory.
void observe_joined(Side& side, int memory) noexcept;
// It never will be. Its entry stays, though nobody counts there any more, until the number is used
// for another connection: who looks asks the kernel whether it still means this socket. Holds no
// lock.
void observe_given_up(int fd, Side& side, Reason reason) noexcept;
// The other end has given it back, and uses the kernel alone. Of an end that is observed.
[[gnu::cold]] void observe_left_by_peer(const Side& side) noexcept;
// Nobody holds it any more: both directions have ended here.
void observe_closed(const Side& side) noexcept;
// It has ended in this process, or the library knows it no longer. Holds `life`, not the locks of
// the side.
void stop_observing(Side& side) noexcept;

// One direction between two UDP sockets, through this memory.
observe::Counters* observe_flow(observe::Role role, int fd, int memory, const Endpoint& local,
                                const Endpoint& remote) noexcept;

// What a call has moved, for who captures: it stands in the call's parts, behind what was there
// before; `left`: so much of them was to come then. See observe/tap.hpp.
struct Moved {
  const iovec* parts;
  std::size_t count;
  std::size_t left;
};
inline constexpr Moved kUnseen{nullptr, 0, 0};
[[gnu::cold]] void tap_sent(Side& side, const Moved& moved, std::size_t bytes) noexcept;
[[gnu::cold]] void tap_received(Side& side, const Moved& moved, std::size_t bytes) noexcept;
// Of a datagram, which begins the message's parts.
[[gnu::cold]] void tap_datagram(observe::Half& half, const msghdr& message,
                                std::size_t bytes) noexcept;

// Looked for where the kernel has moved something, which takes longer than to look.
inline void note_leaving_peer(const Side& side) noexcept {
  const Direction* const out = side.out().control;
  if (out != nullptr && (out->tail.load(std::memory_order_relaxed) & kLeft) != 0) [[unlikely]]
    observe_left_by_peer(side);
}

// Of what one call has moved. Holds the direction's lock.
inline void count_sent(Side& side, bool by_ring, long bytes, const Moved& moved) noexcept {
  if (bytes <= 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  const Side::Own& own = side.own();
  if (own.observed != nullptr) {
    if (by_ring) {
      observe::note_sent(&own.observed->sent, nullptr, size);
    } else {
      observe::note_sent_by_kernel(&own.observed->sent, nullptr, size, observe::Threads::in_turns);
      note_leaving_peer(side);
    }
    if (observe::is_tapped(&own.observed->sent)) [[unlikely]]
      tap_sent(side, moved, size);
  }
  const std::uint64_t before = side.bytes_sent.load(std::memory_order_relaxed);
  side.bytes_sent.store(before + size, std::memory_order_relaxed);
  if (own.counters != nullptr) [[unlikely]]
    (by_ring ? own.counters->ring : own.counters->kernel).count(size);
}
inline void count_received(Side& side, bool by_ring, long bytes, const Moved& moved) noexcept {
  if (bytes <= 0) return;
  const auto size = static_cast<std::size_t>(bytes);
  const Side::Own& own = side.own();
  if (own.observed != nullptr) {
    if (by_ring) {
      observe::note_received(&own.observed->received, nullptr, size);
    } else {
      observe::note_received_by_kernel(&own.observed->received, nullptr, size,
                                       observe::Threads::in_turns);
      note_leaving_peer(side);
    }
    if (observe::is_tapped(&own.observed->received)) [[unlikely]]
      tap_received(side, moved, size);
  }
  const std::uint64_t before = side.bytes_received.load(std::memory_order_relaxed);
  side.bytes_received.store(before + size, std::memory_order_relaxed);
  if (own.counters != nullptr) [[unlikely]]
    (by_ring ? own.counters->ring : own.counters->kernel).count(size);
}
inline observe::Half* waits_of(const Side& side) noexcept {
  return side.own().observed == nullptr ? nullptr : &side.own().observed->received;
}
// Around a sleep in the kernel, and after looking; with the receiver's lock.
inline void note_sleep(const Side& side) noexcept {
  observe::note_sleep(waits_of(side), std::max<std::int64_t>(side.patience.since(), 1));
}
inline void note_awake(Side& side) noexcept {
  observe::note_awake(waits_of(side), side.patience.slept());
}
inline void note_spun(Side& side) noexcept {
  if (const std::int64_t spun = side.patience.take_spun(); spun != 0)
    observe::note_spun(waits_of(side), spun);
}

}  // namespace farcall::preload
