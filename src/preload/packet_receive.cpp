// SPDX-License-Identifier: Apache-2.0
#include "preload/packet_receive.hpp"

#include "preload/call_result.hpp"
#include "preload/handback.hpp"
#include "preload/packet.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {

namespace {

// What the kernel has given to a call that had entered it (Receiver::enter_kernel).
enum class Came : std::uint8_t { message, end, nothing };

// Counts it. Holds the receiver's lock.
Came note_message(Side& side, const Call& call, std::size_t length) noexcept {
  const bool takes = (call.flags & MSG_PEEK) == 0;
  const Ring& ring = side.in();
  const NoBytes meaning =
      length == 0 ? meaning_of_no_bytes(side.receiver, ring, call.fd) : NoBytes::message;
  if (meaning != NoBytes::message) {
    side.receiver.leave_kernel(ring, 0);
    // Or it was a message, and nobody can tell: nobody counts any more.
    if (ring.control == nullptr) end_candidacy(side);
    return meaning == NoBytes::end ? Came::end : Came::nothing;
  }
  const bool is_bell = ring.control != nullptr && doorbell_among(side.receiver, ring, 1) == 0;
  side.receiver.leave_kernel(ring, takes ? 1 : 0, takes ? length : 0);
  if (!is_bell) return Came::message;
  answer_leaving_peer(side, call.fd);
  std::byte bell;
  if (!takes && kernel(SYS_recvfrom, call.fd, &bell, 1, MSG_DONTWAIT, nullptr, nullptr) == 1)
    side.receiver.taken_from_kernel(ring, 1);
  return Came::nothing;
}

}  // namespace

long sleep_for_message(Side& side, const Call& call, std::size_t& length,
                       Guard& guard) noexcept(false) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  side.receiver.enter_kernel();
  note_sleep(side);
  guard.unlock();
  settle_before_sleep();
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(call.parts);
  message.msg_iovlen = call.count;
  call.with->ask(message);
  const bool asks = call.is_rest && !nonblocking(side, call.flags);
  const int flags = call.flags | MSG_TRUNC | (asks ? MSG_DONTWAIT : 0);
  ssize_t got;
  do {
    got = real::next<"recvmsg", ssize_t(int, msghdr*, int)>()(call.fd, &message, flags);
  } while (asks && got < 0 && errno == EAGAIN && sleep_for_rest(call, POLLIN));
  const int error = errno;
  Came came = got >= 0 ? Came::message : Came::end;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    const bool takes = (call.flags & MSG_PEEK) == 0;
    note_awake(side);
    if (got < 0 && error == ECONNRESET) side.reset_told = true;
    // With a pointer that is none a message is thrown away.
    if (got < 0)
      side.receiver.leave_kernel(side.in(), takes && error == EFAULT ? 1 : 0);
    else
      came = note_message(side, call, static_cast<std::size_t>(got));
    if (came == Came::message && takes)
      count_received(side, false, got, {call.parts, call.count, SIZE_MAX});
  }
  errno = error;
  if (came == Came::nothing) return kNothing;
  if (came == Came::end) return got;
  call.with->answered(message);
  call.with->is_message = true;
  length = static_cast<std::size_t>(got);
  return kMessage;
}

ssize_t receive_message_plainly(Side& side, const Call& call, Guard& guard) noexcept(false) {
  std::size_t length = 0;
  const long got = sleep_for_message(side, call, length, guard);
  const int error = errno;
  guard.unlock();
  if (got == kMessage && (call.flags & MSG_PEEK) == 0) count_call(call.fd, side);
  errno = error;
  return got == kMessage ? message_result(call, length) : got;
}

}  // namespace farcall::preload
