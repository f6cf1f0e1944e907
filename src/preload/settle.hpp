// SPDX-License-Identifier: Apache-2.0
//
// What a thread has put into rings is looked at before it sleeps: if nobody has taken it by then,
// the kernel gets it. So a receiver that waits in a way which the library does not see is told, at
// the latest when the sender has nothing else to do. Of datagrams it is looked at whether their
// receiver is there.
#pragma once

#include <utility>

#include "preload/side.hpp"

namespace farcall::preload {

// Bytes were put into the ring of `side`. Holds the sender's lock.
void note_put(Side& side, int fd) noexcept;
// The side is about to be another connection's.
void forget_put(const Side& side) noexcept;

namespace detail {
extern std::atomic<std::uint32_t> unsettled;
void settle(bool all, int descriptor) noexcept;
// Sockets of datagrams that are to be looked at: by a thread that has sent some since it slept last
// all of them, else those that it is time for.
extern std::atomic<std::uint32_t> udp_unsettled;
extern thread_local constinit bool udp_has_sent;
void udp_settle(bool all) noexcept;
}  // namespace detail

// Before this thread sleeps in the kernel, with no lock held.
inline void settle_before_sleep() noexcept {
  if (detail::unsettled.load(std::memory_order_relaxed) != 0) detail::settle(false, -1);
  if (detail::udp_unsettled.load(std::memory_order_relaxed) != 0)
    detail::udp_settle(std::exchange(detail::udp_has_sent, false));
}

// In calls that tell what there is, and do not sleep: datagrams to receivers that have died.
inline void settle_at_times() noexcept {
  if (detail::udp_unsettled.load(std::memory_order_relaxed) != 0) detail::udp_settle(false);
}

// Before the process ends, or executes another program: what all its threads have put.
inline void settle_everything() noexcept {
  detail::settle(true, -1);
  detail::udp_settle(true);
}

// Before `fd` is closed: what was put by way of it. The number may be another file's afterwards.
inline void settle_before_close(int fd) noexcept {
  if (detail::unsettled.load(std::memory_order_relaxed) != 0) detail::settle(true, fd);
}

}  // namespace farcall::preload
