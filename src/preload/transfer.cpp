// SPDX-License-Identifier: Apache-2.0
#include "preload/transfer.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// sendmsg of at most `size` bytes of what is left in `span`.
long kernel_send(int fd, const Span& span, std::size_t size, int flags) noexcept {
  iovec parts[kParts];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = span.parts(parts, kParts, size);
  long result = -EINTR;
  while (result == -EINTR) result = kernel(SYS_sendmsg, fd, &message, flags | MSG_DONTWAIT);
  return result;
}

struct Got {
  long raw;     // what the kernel says
  long useful;  // how much of it is the program's
};

Got kernel_receive(const Receiver& receiver, const Ring& ring, int fd, const Span& span,
                   std::size_t size, int flags) noexcept {
  iovec parts[kParts];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = span.parts(parts, kParts, size);
  long raw = -EINTR;
  while (raw == -EINTR) raw = kernel(SYS_recvmsg, fd, &message, flags | MSG_DONTWAIT);
  if (raw <= 0) return {raw, raw};
  return {raw, static_cast<long>(without_doorbell(receiver, ring, parts, message.msg_iovlen,
                                                  static_cast<std::size_t>(raw)))};
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
    // Further bytes are shown as far as the next segment goes. Its end is read after the kernel has
    // been asked, as in receive_now().
    if (to.left() == 0 || !receiver.kernel_has_more(ring)) return peeked;
    const long queued = kernel_queued(fd);
    const std::uint64_t behind = receiver.kernel_bytes_behind(ring, size);
    if (queued <= 0 || behind == 0) return peeked;
    limit = std::min<std::uint64_t>({to.left(), static_cast<std::uint64_t>(queued), behind});
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
  const auto [raw, got] = kernel_receive(receiver, ring, fd, to, limit, MSG_PEEK);
  if (raw > 0 && got == 0 && peeked == 0) return kNothing;
  if (got < 0 && peeked == 0) return got == -EAGAIN ? kNothing : got;
  return peeked + std::max(got, 0L);
}

}  // namespace

std::size_t without_doorbell(const Receiver& receiver, const Ring& ring, const iovec* parts,
                             std::size_t count, std::size_t got) noexcept {
  // acquire: pairs with the release before the doorbell was sent
  const std::uint64_t bell = ring.control->doorbell.load(std::memory_order_acquire);
  if (bell == 0) [[likely]]
    return got;
  std::uint64_t at = bell - 1 - receiver.kernel_taken();
  if (at >= got) return got;
  // All bytes behind it move up by one.
  std::byte* gap = nullptr;
  for (std::size_t left = got; count != 0 && left != 0; ++parts, --count) {
    auto* const bytes = static_cast<std::byte*>(parts->iov_base);
    const std::size_t size = std::min(parts->iov_len, left);
    left -= size;
    for (std::size_t i = 0; i < size; ++i) {
      if (gap != nullptr) {
        *gap = bytes[i];
        gap = bytes + i;
      } else if (at == i) {
        gap = bytes + i;
      }
    }
    at -= gap == nullptr ? size : 0;
  }
  return got - 1;
}

void answer_recall(Sender& sender, const Ring& ring, int fd) noexcept {
  if (!sender.recalled(ring)) return;
  iovec again[2];
  const std::size_t runs = sender.answer_recall(ring, again);
  if (runs == 0) return;
  constexpr int kPatience = 10'000;
  for (Span left(again, runs); left.left() != 0;) {
    const long sent = kernel_send(fd, left, left.left(), MSG_NOSIGNAL);
    if (sent > 0) {
      sender.enter_kernel();
      sender.leave_kernel(ring, static_cast<std::size_t>(sent));
      left.skip(static_cast<std::size_t>(sent));
      continue;
    }
    pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
    timespec time{.tv_sec = kPatience / 1000, .tv_nsec = 0};
    if (sent != -EAGAIN || kernel(SYS_ppoll, &room, 1, &time, nullptr, 0) <= 0) {
      // Rather no connection than one that lacks bytes.
      kernel(SYS_shutdown, fd, SHUT_RDWR);
      return;
    }
  }
}

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
    const auto [raw, got] = kernel_receive(receiver, ring, fd, to, limit, 0);
    if (raw <= 0) {
      if (moved != 0) return moved;
      return raw == -EAGAIN ? kNothing : raw;
    }
    receiver.taken_from_kernel(static_cast<std::size_t>(raw));
    to.skip(static_cast<std::size_t>(got));
    moved += got;
    // Whatever comes after this announces itself anew.
    if (drained || (static_cast<std::size_t>(raw) < limit && next.kind != Receiver::Next::kernel))
      return moved != 0 ? moved : kNothing;
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
  // Bytes for which there is no mark: they went past the peer's library. Nothing is in front of
  // them.
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
  answer_recall(sender, ring, fd);
  sender.enter_kernel();
  const long sent = kernel_send(fd, from, from.left(), flags | MSG_NOSIGNAL);
  sender.leave_kernel(ring, sent > 0 ? static_cast<std::size_t>(sent) : 0);
  if (sent > 0) from.skip(static_cast<std::size_t>(sent));
  return sent == -EAGAIN ? kNothing : sent;
}

}  // namespace farcall::preload
