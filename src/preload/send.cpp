// SPDX-License-Identifier: Apache-2.0
//
// Calls of a program that send.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cstring>

#include "preload/address.hpp"
#include "preload/call_result.hpp"
#include "preload/handback.hpp"
#include "preload/packet.hpp"
#include "preload/real.hpp"
#include "preload/send_wait.hpp"
#include "preload/settle.hpp"
#include "preload/transfer.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

constexpr std::size_t kKernelChunk = 64 * 1024;
constexpr std::size_t kKernelChunkOfUnix = 16 * 1024;  // see ring_bytes_of()
constexpr std::uint32_t kSendsPerLook = 64;
constexpr std::uint64_t kCheckEvery = 100 * kTicksPerMicrosecond;

// Is the peer still there? A sender that never reads would not notice.
void check_peer(Side& side, int fd) noexcept {
  const std::uint64_t now = now_ticks();
  if (++side.sends_unchecked < kSendsPerLook && now - side.checked_at < kCheckEvery) return;
  side.sends_unchecked = 0;
  side.checked_at = now;
  const std::uint32_t here = this_processor();
  if (side.out().control->sender_processor.load(std::memory_order_relaxed) != here)
    side.out().control->sender_processor.store(here, std::memory_order_relaxed);
  if ((poll_now(fd, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) == 0) return;
  // The kernel knows what to say, unless the peer was killed with bytes unread in the ring.
  const bool gone = peer_is_gone(side, fd);
  if (side.kind == Kind::tcp && gone && is_reset_to_sender(side, fd)) {
    reset_is_told(side, fd);
    keep_error(side, ECONNRESET);
  }
  // One that has finished with sending may read on, and leave: then nothing could be put in front
  // of what is in the kernel.
  if (gone || leave_ring_for_kernel(side, fd)) side.sender.leave_ring(side.out());
}

// What the receiver's end of the kernel holds is in nobody's way.
[[gnu::noinline]] Sender::Way way_if_crowded(Side& side, int fd) noexcept {
  int waits = 0;
  if (kernel(SYS_ioctl, fd, SIOCOUTQ, &waits) < 0 || waits < 0 ||
      static_cast<std::size_t>(waits) > side.sender.most_beside())
    return Sender::Way::kernel;
  return side.sender.way(side.out(), true);
}

// Where the next byte goes, see Sender::way().
[[gnu::always_inline]] inline Sender::Way way(Side& side, int fd) noexcept {
  const Sender::Way way = side.sender.way(side.out());
  return way == Sender::Way::crowded ? way_if_crowded(side, fd) : way;
}

// Then holds a place among those who send through the kernel.
ssize_t enter_kernel(Side& side, const Call& call) noexcept {
  while (!side.sender.enter_kernel(side.out()))
    if (const ssize_t waited = let_peer_leave(side, call); waited != 0) return waited;
  return 0;
}

// What comes as a whole goes as a whole.
std::size_t kernel_chunk(const Side& side) noexcept {
  if (side.has_messages()) return SIZE_MAX;
  return side.kind == Kind::tcp ? kKernelChunk : kKernelChunkOfUnix;
}

// What is little goes by a call that cannot wait, with the lock held, which saves the second turn
// of it. kNothing: the program's own call is to be made, since there is no room or to have it told.
ssize_t send_at_once(Side& side, const Call& call, const Span& from) noexcept {
  constexpr std::size_t kLittle = 4096;
  const std::size_t size = from.left();
  if (size > kLittle || from.part_count() > kParts || side.has_messages() || call.is_rest ||
      !side.sender.enter_kernel(side.out()))
    return kNothing;
  const long sent = kernel_send(call.fd, from, size, call.flags | MSG_NOSIGNAL);
  side.sender.leave_kernel(side.out(), sent > 0 ? static_cast<std::size_t>(sent) : 0);
  count_sent(side, false, sent, {call.parts, call.count, size});
  if (sent > 0) return sent;
  // The kernel says so as often as it is asked, and by the program's own call as that wants it.
  const int error = static_cast<int>(-sent);
  if (error == EPIPE || !is_of_connection(error)) return kNothing;
  if (error == ECONNRESET) side.reset_told = true;
  return fail(sent);
}

// `cut`: the kernel has taken less than it was given, and would not have waited for more.
ssize_t send_through_kernel(Side& side, const Call& call, const Span& from, bool untouched,
                            bool& cut, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  const bool wait = !nonblocking(side, call.flags);
  if (untouched && others_compete(side))
    if (const ssize_t sent = send_at_once(side, call, from); sent != kNothing) {
      cut = !wait && static_cast<std::size_t>(sent) < from.left();
      return sent;
    }
  // In pieces, so that the ring is used as soon as the receiver has woken up.
  const std::size_t size = wait && !side.sender.gone_for_ever()
                               ? std::min(from.left(), kernel_chunk(side))
                               : from.left();
  if (const ssize_t refused = enter_kernel(side, call); refused != 0) return refused;
  guard.unlock();
  if (wait) settle_before_sleep();
  // A call that has sent something does not sleep in one that a signal would start again; nor does
  // one of whose time a part is over, in one to which the kernel gives all of it.
  const bool asks =
      wait && (!untouched || (call.is_rest && call.count <= kParts) ||
               (call.slept != 0 && !side.has_messages() && time_limit(call.fd, SO_SNDTIMEO) != 0));
  const std::int64_t start = wait && !asks && size < from.left() ? monotonic_ns() : 0;
  std::size_t given = size;
  ssize_t sent;
  if (untouched && !asks && size == from.left()) {
    sent = call.libc_call(call.arguments);
  } else {
    iovec parts[kParts];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = from.parts(parts, kParts, size);
    given = Span(parts, message.msg_iovlen).left();
    // A broken pipe raises a signal only where nothing has been sent.
    const int flags = call.flags | (untouched ? 0 : MSG_NOSIGNAL) | (asks ? MSG_DONTWAIT : 0);
    bool in_time = true;
    do {
      sent = real::next<"sendmsg", ssize_t(int, const msghdr*, int)>()(call.fd, &message, flags);
    } while (asks && sent < 0 && errno == EAGAIN && in_time &&
             ((in_time = sleep_for_rest(call, POLLOUT)) ||
              (side.kind == Kind::unix_stream && errno == EAGAIN)));
  }
  const int error = errno;
  if (side.kind == Kind::unix_stream && sent > 0)
    call.slept = 0;
  else if (start != 0)
    call.slept += monotonic_ns() - start;
  cut = !asks && sent >= 0 && static_cast<std::size_t>(sent) < given;
  if (sent < 0 && error == ECONNRESET) side.reset_told = true;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    side.sender.leave_kernel(side.out(), units_sent(side, sent), message_bytes(side, sent));
    count_sent(side, false, sent, {call.parts, call.count, from.left()});
  } else {
    cut = true;  // the descriptor has been closed meanwhile: what has been sent is all
  }
  errno = error;
  return sent;
}

// The kernel has told of the end of the connection, but not to a call of the program.
void keep_end(Side& side, int fd, int error) noexcept {
  if (side.kind != Kind::tcp) return;  // unix streams tell such a sender nothing more
  if (error == EPIPE)
    keep_broken_pipe(side, fd);
  else
    keep_error(side, error);
}

ssize_t send_accelerated(Side& side, const Call& call, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  Span from(call.parts, call.count);
  const std::size_t wanted = from.left();
  for (unsigned waits = 0;;) {
    const auto sent = [&] { return static_cast<ssize_t>(wanted - from.left()); };
    if (is_gone(side, generation)) return sent() != 0 ? sent() : fail(-EBADF);
    switch (way(side, call.fd)) {
      case Sender::Way::broken: return broken(side, call.fd);
      case Sender::Way::ring: {
        check_peer(side, call.fd);
        if (side.sender.in_kernel()) continue;
        const std::size_t put = side.sender.put(side.out(), from);
        count_sent(side, true, static_cast<long>(put), {call.parts, call.count, from.left() + put});
        if (put != 0) note_put(side, call.fd);
        if (from.left() == 0) return sent();
        if (put != 0) {
          waits = 0;
          continue;
        }
        if (side.sender.broken()) continue;
        if (!side.sender.closed(side.out())) {
          if (wait_for_room(side, nonblocking(side, call.flags), guard) && ++waits < 1000) continue;
          if (is_gone(side, generation)) continue;
        }
        if (!leave_ring_for_kernel(side, call.fd)) {
          const ssize_t waited = wait_for_kernel(side, call, sent() != 0, guard);
          if (waited != 0) return sent() != 0 ? sent() : waited;
        }
        continue;
      }
      case Sender::Way::crowded:
      case Sender::Way::kernel: break;
    }
    // With nothing sent it is this call that tells.
    if (side.kind == Kind::tcp && side.error_kept.load(std::memory_order_relaxed) != 0) {
      if (sent() != 0) return sent();
      if (const int error = take_error_to_send(side); error != 0) return fail(-error);
    }
    bool cut = false;
    const ssize_t now = send_through_kernel(side, call, from, sent() == 0, cut, guard);
    if (now <= 0) {
      if (sent() == 0) return now;
      if (now < 0 && !is_gone(side, generation)) keep_end(side, call.fd, errno);
      return sent();
    }
    from.skip(static_cast<std::size_t>(now));
    if (from.left() == 0 || cut) return sent();
  }
}

bool may_have_no_bytes(const Call& call) noexcept {
  return has_bad_part(call.parts, call.count) || Span(call.parts, call.count).left() == 0;
}

// What is urgent stands at a place in the kernel's stream, and the receiver may never read it,
// which nobody tells who counts.
bool is_urgent(const Side& side, const Call& call) noexcept {
  return (call.flags & MSG_OOB) != 0 && !side.has_messages();
}

ssize_t send_all_by_kernel(Side& side, const Call& call, Afterwards afterwards) {
  Guard guard(side.send_lock);
  if (!guard) return fail(-EINTR);
  if (is_elsewhere(side, call)) return call_elsewhere(call, guard);
  if (is_urgent(side, call)) {
    afterwards = Afterwards::kernel;
    if (side.out().control != nullptr)
      side.out().control->urgent_sent.store(1, std::memory_order_relaxed);
  }
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  if (side.out().control != nullptr) {
    while (!leave_ring_for_kernel(side, call.fd))
      if (const ssize_t waited = wait_for_kernel(side, call, false, guard); waited != 0)
        return waited;
    if (side.kind == Kind::tcp)
      if (const int error = take_error_to_send(side); error != 0) return fail(-error);
    if (afterwards == Afterwards::kernel) side.sender.leave_ring(side.out());
  }
  if (const ssize_t refused = enter_kernel(side, call); refused != 0) return refused;
  if (side.has_messages() && may_have_no_bytes(call)) side.sender.note_empty(side.out());
  guard.unlock();
  settle_before_sleep();
  const ssize_t sent = call.libc_call(call.arguments);
  const int error = errno;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    side.sender.leave_kernel(side.out(), units_sent(side, sent), message_bytes(side, sent));
    if (afterwards == Afterwards::ring_when_taken) side.sender.stay_in_kernel_until_taken();
    const bool candidate = side.out().control == nullptr;
    count_sent(side, false, sent, {call.parts, call.count, SIZE_MAX});
    guard.unlock();
    if (units_sent(side, sent) != 0 && candidate) count_call(call.fd, side);
  }
  errno = error;
  return sent;
}

// No bytes need no room, and come behind none: the kernel only looks whether it could send.
ssize_t send_nothing(Side& side, const Call& call, Guard& guard) {
  guard.unlock();
  const ssize_t sent = call.libc_call(call.arguments);
  if (sent < 0 && errno == ECONNRESET) side.reset_told = true;
  return sent;
}

// A message goes whole or not at all.
ssize_t send_message(Side& side, const Call& call, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  const Span message(call.parts, call.count);
  const std::size_t length = message.left();
  bool cut = false;
  for (unsigned waits = 0;;) {
    if (is_gone(side, generation)) return fail(-EBADF);
    switch (way(side, call.fd)) {
      case Sender::Way::broken: return broken(side, call.fd);
      case Sender::Way::crowded:
      case Sender::Way::kernel: return send_through_kernel(side, call, message, true, cut, guard);
      case Sender::Way::ring: break;
    }
    check_peer(side, call.fd);
    if (side.sender.in_kernel()) continue;
    const std::size_t room = side.room.load(std::memory_order_relaxed);
    if (side.sender.put_message(side.out(), message, room)) {
      count_sent(side, true, static_cast<long>(length), {call.parts, call.count, length});
      note_put(side, call.fd);
      return static_cast<ssize_t>(length);
    }
    if (side.sender.broken()) continue;
    if (!side.sender.closed(side.out())) {
      if (wait_for_room(side, nonblocking(side, call.flags), guard) && ++waits < 1000) continue;
      if (is_gone(side, generation)) continue;
    }
    if (!leave_ring_for_kernel(side, call.fd))
      if (const ssize_t waited = wait_for_kernel(side, call, false, guard); waited != 0)
        return waited;
  }
}

// The kernel does not know that the peer has left messages in the ring.
ssize_t tell_reset(Side& side, int fd, ssize_t result) noexcept {
  if (result >= 0) return result;
  const int error = errno;
  if (error == ECONNRESET) side.reset_told = true;
  if (error != EPIPE) return fail(-error);
  // It may have told it to this very call, which took messages back first.
  if (const int kept = take_error(side); kept != 0) return fail(-kept);
  if (!peer_is_gone(side, fd)) return fail(-error);
  const Guard receiving(side.receive_lock);
  if (!receiving || !is_reset(side, fd)) return fail(-error);
  side.reset_told = true;
  return fail(-ECONNRESET);
}

ssize_t send_packet(Side& side, const Call& call) {
  // The kernel says so before anything else.
  if (const int error = take_error(side); error != 0) [[unlikely]]
    return fail(-error);
  // Nobody knows yet how long one may be in front of others, see is_for_kernel().
  Afterwards afterwards = side.accelerated() ? Afterwards::ring : Afterwards::ring_when_taken;
  if (!has_bad_part(call.parts, call.count) && (call.flags & MSG_OOB) == 0) {
    const std::size_t length = Span(call.parts, call.count).left();
    Guard guard(side.send_lock);
    if (!guard) return fail(-EINTR);
    if (is_elsewhere(side, call)) [[unlikely]]
      return call_elsewhere(call, guard);
    if (side.out().control != nullptr) {
      const std::size_t room = side.room.load(std::memory_order_relaxed);
      // Kernels differ in whether one of no bytes, unread, is a reason for a reset.
      const bool is_usual = length != 0 && call.count <= kMostParts;
      if (is_for_kernel(length, side.out().size))
        afterwards = Afterwards::ring_when_taken;
      else if (is_usual && space_of_message(length) <= room)
        return send_message(side, call, guard);
    }
  }
  return send_all_by_kernel(side, call, afterwards);
}

}  // namespace

bool reclaim(Side& side, int fd, bool always) noexcept {
  const std::uint64_t before = side.sender.kernel_sent();
  const long error = reclaim_now(side.sender, side.out(), fd, always, side.has_messages());
  if (error == -EPIPE)
    keep_broken_pipe(side, fd);
  else
    keep_error(side, static_cast<int>(-error));
  if (side.sender.kernel_sent() != before) side.reclaimed_to = side.sender.kernel_sent();
  return !is_of_connection(static_cast<int>(-error));
}

ssize_t send_by_kernel(Side& side, const Call& call, Afterwards afterwards) noexcept(false) {
  if (!side.has_messages()) return send_all_by_kernel(side, call, afterwards);
  if (const int error = take_error(side); error != 0) return fail(-error);
  return tell_reset(side, call.fd, send_all_by_kernel(side, call, afterwards));
}

ssize_t send_to(Side& side, const Call& call) noexcept(false) {
  if (side.has_messages()) return tell_reset(side, call.fd, send_packet(side, call));
  // A unix stream tells who sends of a broken pipe only.
  if (side.kind == Kind::tcp)
    if (const int error = take_error_to_send(side); error != 0) [[unlikely]]
      return fail(-error);
  if (has_bad_part(call.parts, call.count)) [[unlikely]]
    return send_by_kernel(side, call, Afterwards::ring);
  // What is not copied stays in the kernel's stream; and see is_urgent().
  constexpr int kKernelOnly = MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN;
  if ((call.flags & kKernelOnly) != 0) {
    if ((call.flags & MSG_OOB) != 0) note_reason(side, Reason::urgent);
    return send_by_kernel(side, call, Afterwards::kernel);
  }
  {
    Guard guard(side.send_lock);
    if (!guard) return fail(-EINTR);
    if (is_elsewhere(side, call)) [[unlikely]]
      return call_elsewhere(call, guard);
    if (side.out().control != nullptr) {
      if (call.count > kMostParts) return fail(-EINVAL);
      if (Span(call.parts, call.count).left() != 0) return send_accelerated(side, call, guard);
      return send_nothing(side, call, guard);
    }
  }
  return send_by_kernel(side, call, Afterwards::ring);
}

}  // namespace farcall::preload
