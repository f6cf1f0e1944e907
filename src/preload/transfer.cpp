// SPDX-License-Identifier: Apache-2.0
#include "preload/transfer.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// recvmsg/sendmsg of at most `size` bytes of what is left in `span`.
long kernel_move(long call, int fd, const Span& span, std::size_t size, int flags) noexcept {
  iovec parts[kParts];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = span.parts(parts, kParts, size);
  long result = -EINTR;
  while (result == -EINTR) result = kernel(call, fd, &message, flags | MSG_DONTWAIT);
  return result;
}

// Peeks at a run of the stream that begins in the ring and may go on in the kernel.
long peek_now(Receiver& receiver, const Ring& ring, int fd, Span& to) noexcept {
  const Receiver::Next next = receiver.next(ring);
  long peeked = 0;
  std::size_t limit = to.left();
  if (next.kind == Receiver::Next::broken) return -ECONNRESET;
  if (next.kind == Receiver::Next::ring) {
    const std::size_t size = std::min<std::size_t>(next.bytes, limit);
    receiver.peek(ring, to, size);
    peeked = static_cast<long>(size);
    // Beyond the ring's bytes the kernel's begin only where a mark stands; whoever needs them
    // finds them when these have been read, unless nothing else will ever come.
    if (to.left() == 0 || !receiver.kernel_has_more(ring)) return peeked;
    const long queued = kernel_queued(fd);
    if (queued <= 0) return peeked;
    limit = static_cast<std::size_t>(queued);
    const Receiver::Next again = receiver.next(ring);
    if (again.bytes != size) return peeked;
  } else if (next.kind == Receiver::Next::kernel) {
    limit = std::min<std::size_t>(limit, next.bytes);
  } else if (next.kind == Receiver::Next::nothing && !receiver.watched()) {
    return kNothing;
  } else if (!receiver.watched()) {
    const long queued = kernel_queued(fd);
    if (queued <= 0) return kNothing;
    if (receiver.next(ring).kind != Receiver::Next::open) return peek_now(receiver, ring, fd, to);
    limit = std::min(limit, static_cast<std::size_t>(queued));
  }
  const long got = kernel_move(SYS_recvmsg, fd, to, limit, MSG_PEEK);
  if (got < 0 && peeked == 0) return got == -EAGAIN ? kNothing : got;
  return peeked + std::max(got, 0L);
}

}  // namespace

long kernel_queued(int fd) noexcept {
  int bytes = 0;
  const long result = kernel(SYS_ioctl, fd, FIONREAD, &bytes);
  return result < 0 ? result : bytes;
}

long receive_now(Receiver& receiver, const Ring& ring, int fd, Span& to, bool peek) noexcept {
  if (peek) return peek_now(receiver, ring, fd, to);
  long moved = 0;
  while (to.left() != 0) {
    const Receiver::Next next = receiver.next(ring);
    std::size_t limit = to.left();
    switch (next.kind) {
      case Receiver::Next::ring: {
        const std::size_t size = std::min<std::size_t>(next.bytes, limit);
        receiver.take(ring, to, size);
        moved += static_cast<long>(size);
        continue;
      }
      case Receiver::Next::broken: return moved != 0 ? moved : -ECONNRESET;
      case Receiver::Next::nothing:
        if (!receiver.watched()) return moved != 0 ? moved : kNothing;
        break;
      case Receiver::Next::kernel: limit = std::min<std::size_t>(limit, next.bytes); break;
      case Receiver::Next::open:
        if (!receiver.watched()) {
          // What is there now belongs to this segment if it is open afterwards.
          const long queued = kernel_queued(fd);
          if (queued <= 0) return moved != 0 ? moved : kNothing;
          if (receiver.next(ring).kind != Receiver::Next::open) continue;
          limit = std::min(limit, static_cast<std::size_t>(queued));
        }
        break;
    }
    // An error is reported once; it must not be lost behind bytes that came before it.
    if (moved != 0 && kernel_queued(fd) <= 0) return moved;
    const bool drained = limit < to.left() && next.kind != Receiver::Next::kernel;
    const long got = kernel_move(SYS_recvmsg, fd, to, limit, 0);
    if (got <= 0) {
      if (moved != 0) return moved;
      return got == -EAGAIN ? kNothing : got;
    }
    receiver.taken_from_kernel(static_cast<std::size_t>(got));
    to.skip(static_cast<std::size_t>(got));
    moved += got;
    // Whatever comes after this announces itself anew.
    if (drained || (static_cast<std::size_t>(got) < limit && next.kind != Receiver::Next::kernel))
      return moved;
  }
  return moved != 0 ? moved : kNothing;
}

long look_for_end(Receiver& receiver, const Ring& ring, int fd) noexcept {
  pollfd look{.fd = fd, .events = POLLRDHUP, .revents = 0};
  timespec now{};
  if (kernel(SYS_ppoll, &look, 1, &now, nullptr, 0) <= 0) return kNothing;
  if ((look.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) == 0) return kNothing;
  // Whatever the peer sent before its end is here by now.
  const Receiver::Next next = receiver.next(ring);
  if (next.kind == Receiver::Next::ring || next.kind == Receiver::Next::kernel) return kNothing;
  if (next.kind == Receiver::Next::broken) return -ECONNRESET;
  std::byte one;
  const long got = kernel(SYS_recvfrom, fd, &one, 1, MSG_PEEK | MSG_DONTWAIT, nullptr, nullptr);
  if (got == -EAGAIN || got == -EINTR) return kNothing;
  // Bytes for which there is no mark: they went past the peer's library. Nothing is in front of them.
  if (got > 0 && receiver.next(ring).kind == Receiver::Next::nothing) receiver.watch_for_ever(ring);
  return got > 0 ? kNothing : got;
}

long send_now(Sender& sender, const Ring& ring, int fd, Span& from, int flags) noexcept {
  switch (sender.way(ring)) {
    case Sender::Way::broken: return -ECONNRESET;
    case Sender::Way::ring: {
      const std::size_t put = sender.put(ring, from);
      if (put != 0) return static_cast<long>(put);
      if (sender.broken()) return -ECONNRESET;
      if (!sender.in_kernel()) return kNothing;
      break;
    }
    case Sender::Way::kernel: break;
  }
  sender.enter_kernel();
  const long sent = kernel_move(SYS_sendmsg, fd, from, from.left(), flags | MSG_NOSIGNAL);
  sender.leave_kernel(ring, sent > 0 ? static_cast<std::size_t>(sent) : 0);
  if (sent > 0) from.skip(static_cast<std::size_t>(sent));
  return sent == -EAGAIN ? kNothing : sent;
}

}  // namespace farcall::preload
