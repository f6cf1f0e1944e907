// SPDX-License-Identifier: Apache-2.0
#include "preload/send_wait.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>

#include <algorithm>

#include "preload/call_result.hpp"
#include "preload/handback.hpp"
#include "preload/settle.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {

namespace {

// The program is told that there is no room. Where that is not the kernel's word nobody would be
// told when there is some again; so the kernel is made to tell at once, and the program asks again.
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

// When its time is over a send to a unix stream goes on if there is any room, of which the kernel
// tells when three quarters are free.
bool takes_more(Side& side, int fd) noexcept {
  const std::uint64_t before = side.sender.kernel_sent();
  return leave_ring_for_kernel(side, fd) || side.sender.kernel_sent() != before;
}

}  // namespace

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

ssize_t let_peer_leave(Side& side, const Call& call) noexcept {
  if (nonblocking(side, call.flags))
    return bear_with_leaving_peer(side, call.fd) ? 0 : no_room(side, call.fd);
  Left left = await_leaving_peer(side, call.fd, 0);
  if (left == Left::yes) return 0;
  const std::int64_t longest = time_limit(call.fd, SO_SNDTIMEO);
  const std::int64_t start = monotonic_ns();
  left = await_leaving_peer(side, call.fd, longest == 0 ? INT64_MAX : longest - call.slept);
  call.slept += monotonic_ns() - start;
  if (left == Left::yes) return 0;
  return left == Left::not_yet ? no_room(side, call.fd) : fail(-EINTR);
}

ssize_t wait_for_kernel(Side& side, const Call& call, bool part_sent, Guard& guard) {
  // What is in the ring is not sent while the peer leaves.
  if (const ssize_t waited = let_peer_leave(side, call); waited != 0) return waited;
  if (nonblocking(side, call.flags)) return no_room(side, call.fd);
  const std::int64_t longest = time_limit(call.fd, SO_SNDTIMEO);
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  guard.unlock();
  settle_before_sleep();
  ssize_t result = 0;
  const std::int64_t start = monotonic_ns() - call.slept;
  // Room wakes at once. Signals are held meanwhile, as nobody else tells which of them end the
  // call, so they are looked for: after a moment at first, and less often by whoever has waited
  // for long.
  constexpr std::int64_t kFirstLook = 2'000'000;
  constexpr std::int64_t kLastLook = 32'000'000;
  std::int64_t until_look = kFirstLook;
  for (bool room = false; !room && result == 0;
       until_look = std::min(until_look + until_look / 8, kLastLook)) {
    ::pthread_testcancel();
    const HeldSignals held;
    pollfd look{.fd = call.fd, .events = POLLOUT, .revents = 0};
    const std::int64_t left =
        longest == 0 ? until_look : std::max<std::int64_t>(start + longest - monotonic_ns(), 0) + 1;
    timespec moment{.tv_sec = 0, .tv_nsec = std::min(until_look, left)};
    long ready = kernel(SYS_ppoll, &look, 1, &moment, nullptr, 0);
    if (ready == -EINVAL) ready = select_one(call.fd, POLLOUT, &moment);
    room = ready > 0;
    if (ends_wait(held.interruption(), part_sent || call.is_rest || longest != 0))
      result = fail(-EINTR);
    else if (longest != 0 && monotonic_ns() - start > longest)
      result = fail(-EAGAIN);
  }
  call.slept = monotonic_ns() - start;
  const int error = errno;
  if (!guard.lock()) return fail(-EINTR);
  if (is_gone(side, generation)) return fail(-EBADF);
  if (side.kind == Kind::unix_stream && (result == 0 || error == EAGAIN) &&
      takes_more(side, call.fd)) {
    call.slept = 0;
    return 0;
  }
  errno = error;
  return result;
}

}  // namespace farcall::preload
