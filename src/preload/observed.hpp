// SPDX-License-Identifier: Apache-2.0
//
// What this process tells of its connections to who may look (farcall/observe.hpp). The entry of a
// connection is in Side::Own: a forked child goes on with it, and counts from 0.
#pragma once

#include <sys/socket.h>

#include <algorithm>

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
// It will not be. Its entry stays, though nobody counts there any more, until the number is used
// for another connection: who looks asks the kernel whether it still means this socket.
void observe_given_up(int fd, Side& side, Reason reason) noexcept;
// It has ended in this process. Holds `life`, not the locks of the side.
void stop_observing(Side& side) noexcept;

// One direction between two UDP sockets, through this memory.
observe::Counters* observe_flow(observe::Role role, int fd, int memory, const Endpoint& local,
                                const Endpoint& remote) noexcept;

// Of what one call has moved, by the direction's own lock where it is the ring.
inline void count_sent(Side& side, bool by_ring, long bytes) noexcept {
  if (bytes <= 0) return;
  const Side::Own& own = side.own();
  if (own.observed != nullptr) {
    if (by_ring)
      observe::note_sent(&own.observed->sent, nullptr, static_cast<std::size_t>(bytes));
    else
      observe::note_sent_by_kernel(&own.observed->sent, nullptr, static_cast<std::size_t>(bytes));
  }
  if (own.counters != nullptr) [[unlikely]]
    (by_ring ? own.counters->ring : own.counters->kernel).count(static_cast<std::uint64_t>(bytes));
}
inline void count_received(Side& side, bool by_ring, long bytes) noexcept {
  if (bytes <= 0) return;
  const Side::Own& own = side.own();
  if (own.observed != nullptr) {
    if (by_ring)
      observe::note_received(&own.observed->received, nullptr, static_cast<std::size_t>(bytes));
    else
      observe::note_received_by_kernel(&own.observed->received, nullptr,
                                       static_cast<std::size_t>(bytes));
  }
  if (own.counters != nullptr) [[unlikely]]
    (by_ring ? own.counters->ring : own.counters->kernel).count(static_cast<std::uint64_t>(bytes));
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
