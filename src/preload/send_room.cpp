// SPDX-License-Identifier: Apache-2.0
#include "preload/send_room.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include "preload/call_result.hpp"
#include "preload/real.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {
bool leave_ring_for_kernel(Side& side, int fd) noexcept {
  const bool can_be_sent = reclaim(side, fd, true);
  if (side.sender.in_kernel()) return true;
  const Ring& ring = side.out();
  if (!can_be_sent || ring.control->receiver_finished.load(std::memory_order_relaxed) != 0)
    side.sender.leave_ring(ring);  // the kernel says why
  else if (side.sender.unread(ring) != 0 && !side.sender.broken())
    return false;
  else
    side.sender.use_kernel(ring);
  return true;
}

bool wait_for_room(Side& side, bool briefly, Guard& guard) noexcept {
  const Ring ring = side.out();
  const std::uint64_t before = ring.control->head.load(std::memory_order_relaxed);
  guard.unlock();
  const bool together =
      ring.control->receiver_processor.load(std::memory_order_relaxed) == this_processor();
  const auto moved = [&] {
    return ring.control->head.load(std::memory_order_relaxed) != before ||
           (ring.control->tail.load(std::memory_order_relaxed) & kFlags) != 0;
  };
  bool room = false;
  if (together) {
    for (unsigned i = 0;
         i < (briefly ? 1 : 4) && !(room = moved()) && !others_compete(this_processor()); ++i)
      give_turn();
  } else {
    const unsigned looks = briefly ? 100 : 2000;
    for (unsigned i = 0; i < looks && !(room = moved()); ++i) relax();
  }
  return guard.lock() && (room || moved());
}

ssize_t no_room(const Side& side, int fd) noexcept {
  if ((poll_now(fd, POLLOUT) & POLLOUT) == 0) return fail(-EAGAIN);
  // Each has the kernel wake whoever waits for room, and is set to what it was.
  if (is_unix(side.kind)) {
    const RoomForAll raised_and_lowered(fd, side.out().size);
  } else {
    int value = 0;
    socklen_t size = sizeof value;
    if (kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, &size) == 0)
      kernel(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &value, size);
  }
  return fail(-EAGAIN);
}

}  // namespace farcall::preload
