// SPDX-License-Identifier: Apache-2.0
#include "preload/receive_kernel.hpp"

#include <sys/ioctl.h>

#include "preload/between_calls.hpp"
#include "preload/call_result.hpp"
#include "preload/handback.hpp"
#include "preload/packet_receive.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {

std::size_t came_from_kernel(Side& side, const Call& call, const iovec* parts, std::size_t count,
                             std::size_t raw) noexcept {
  std::size_t useful = raw;
  if (side.in().control != nullptr &&
      side.in().control->doorbell.load(std::memory_order_relaxed) != 0) [[unlikely]]
    useful = without_doorbell(side.receiver, side.in(), parts, count, raw);
  const bool takes = (call.flags & MSG_PEEK) == 0;
  side.receiver.leave_kernel(side.in(), takes ? raw : 0);
  if (useful == raw) return raw;
  answer_leaving_peer(side, call.fd);
  std::byte bell;
  if (useful == 0 && !takes &&
      kernel(SYS_recvfrom, call.fd, &bell, 1, MSG_DONTWAIT, nullptr, nullptr) == 1)
    side.receiver.taken_from_kernel(side.in(), 1);
  // The call was full: one more byte, in the doorbell's place.
  Span rest(parts, count);
  iovec last;
  if (takes && call.with == nullptr && rest.left() == raw &&
      (rest.skip(useful), rest.parts(&last, 1, 1)) == 1 &&
      kernel(SYS_recvfrom, call.fd, last.iov_base, 1, MSG_DONTWAIT, nullptr, nullptr) == 1) {
    side.receiver.taken_from_kernel(side.in(), 1);
    ++useful;
  }
  return useful;
}

namespace {

// Where a stream's bytes are thrown away no pointer is looked at.
Moved moved_by_kernel(const Side& side, const Call& call) noexcept {
  if (!side.has_messages() && (call.flags & MSG_TRUNC) != 0) return kUnseen;
  return {call.parts, call.count, SIZE_MAX};
}

}  // namespace

ssize_t receive_plainly(Side& side, const Call& call, Guard& guard) noexcept(false) {
  if (side.has_messages()) return receive_message_plainly(side, call, guard);
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  side.receiver.enter_kernel();
  guard.unlock();
  settle_before_sleep();
  ssize_t got = call.libc_call(call.arguments);
  const int error = errno;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    if (got > 0 && (call.flags & (MSG_OOB | MSG_ERRQUEUE)) == 0) {
      // It may have become accelerated, and even left again, while this call slept.
      got = static_cast<ssize_t>(
          came_from_kernel(side, call, call.parts, call.count, static_cast<std::size_t>(got)));
      if (got == 0) return kNothing;
      if ((call.flags & MSG_PEEK) == 0)
        count_received(side, false, got, moved_by_kernel(side, call));
    } else {
      side.receiver.leave_kernel(side.in(), 0);
      if (got < 0 && error == ECONNRESET) side.reset_told = true;
      const bool wanted_none = Span(call.parts, call.count).left() == 0;
      if (got == 0 && !wanted_none && at_end(side, call.fd, 0) != 0) return -1;
    }
    guard.unlock();
    if (got > 0 && (call.flags & (MSG_PEEK | MSG_OOB)) == 0) count_call(call.fd, side);
  }
  errno = error;
  return got;
}

bool is_left_to_kernel(Side& side, const Call& call) noexcept {
  constexpr int kAsksForMore = MSG_PEEK | MSG_WAITALL | MSG_TRUNC;
  if (!side.receiver.watched() || side.has_messages() || call.is_rest ||
      (call.flags & kAsksForMore) != 0 || !others_compete(side))
    return false;
  const Ring& ring = side.in();
  const Receiver::Next::Kind next = side.receiver.next(ring).kind;
  return (next == Receiver::Next::open || next == Receiver::Next::nothing) &&
         side.receiver.watched() && !side.receiver.is_moved(ring) &&
         ring.control->doorbell.load(std::memory_order_relaxed) == 0;
}

namespace {

// The program's own call, without the lock, so it may wait; or one like it that cannot, and needs
// no second turn of the lock.
ssize_t call_kernel(Side& side, const Call& call, Guard& guard, int& error) {
  const bool waits = !nonblocking(side, call.flags);
  if (!waits && call.count == 1 && (call.with == nullptr || !call.with->is_told)) {
    const long got = kernel(SYS_recvfrom, call.fd, call.parts[0].iov_base, call.parts[0].iov_len,
                            call.flags | MSG_DONTWAIT, nullptr, nullptr);
    error = got < 0 ? static_cast<int>(-got) : errno;
    return got < 0 ? -1 : got;
  }
  if (waits) {
    side.waited = true;
    note_sleep(side);
  }
  guard.unlock();
  settle_before_sleep();
  if (call.with != nullptr) call.with->in_vain = false;
  const ssize_t got = call.libc_call(call.arguments);
  error = errno;
  if (guard.lock() && waits) note_awake(side);
  return got;
}

// There may be something else to take, which is told of as this library tells it.
ssize_t look_again(const Call& call) noexcept {
  if (call.with != nullptr) call.with->in_vain = true;
  return kNothing;
}

// A receiver that is behind its sender is served by the ring without any call. So that is tried now
// and then: one that waits for what comes watches again before it sleeps.
void try_ring(Side& side, const Call& call) noexcept {
  constexpr std::uint32_t kCallsPerTry = 16;
  if (++side.direct_calls % kCallsPerTry != 0) return;
  if (may_stay_unwatched(side, call.fd, !nonblocking(side, call.flags)))
    side.receiver.unwatch(side.in());
}

}  // namespace

ssize_t receive_directly(Side& side, const Call& call, Guard& guard) noexcept(false) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  side.receiver.enter_kernel();
  int error = 0;
  ssize_t got = call_kernel(side, call, guard, error);
  if (!guard || is_gone(side, generation)) {
    errno = error;
    return got;
  }
  if (got > 0) {
    got = static_cast<ssize_t>(
        came_from_kernel(side, call, call.parts, call.count, static_cast<std::size_t>(got)));
    if (got == 0) return look_again(call);
    count_received(side, false, got, {call.parts, call.count, SIZE_MAX});
    note_success(side);
    try_ring(side, call);
    return got;
  }
  const Ring& ring = side.in();
  side.receiver.leave_kernel(ring, 0);
  // What the kernel has announced, or what a peer has died with, is there to be looked for.
  if (got == 0 ? side.receiver.reclaim_unfinished(ring)
               : error == EAGAIN && side.receiver.kernel_has_more(ring))
    return look_again(call);
  if (got < 0) return fail(-told_by_kernel(side, call.fd, error));
  side.receiver.watch_for_ever(ring);
  return at_end(side, call.fd, 0);
}

bool is_at_urgent_byte(const Side& side, int fd) noexcept {
  int is_there = 0;
  const Direction* const in = side.in().control;  // it may be closed meanwhile
  return in != nullptr && in->urgent_sent.load(std::memory_order_relaxed) != 0 &&
         kernel(SYS_ioctl, fd, SIOCATMARK, &is_there) == 0 && is_there != 0;
}

}  // namespace farcall::preload
