// SPDX-License-Identifier: Apache-2.0
#include "preload/transfer.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <span>

#include "preload/options.hpp"
#include "preload/packet.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

long kernel_send(int fd, const Span& span, std::size_t size, int flags) noexcept {
  iovec parts[kParts];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = span.parts(parts, kParts, size);
  flags |= MSG_DONTWAIT;
  long result = -EINTR;
  // Of one part, the kernel is quicker to be told so.
  while (result == -EINTR)
    result = message.msg_iovlen == 1
                 ? kernel(SYS_sendto, fd, parts[0].iov_base, parts[0].iov_len, flags, nullptr, 0)
                 : kernel(SYS_sendmsg, fd, &message, flags);
  return result;
}

namespace {

struct Got {
  long raw;     // what the kernel says
  long useful;  // how much of it is the program's
};

// recvmsg() without waiting; negative errno.
long ask_kernel(int fd, msghdr& message, int flags, Ancillary* with) noexcept {
  if (with != nullptr) {
    with->ask(message);
    flags |= with->wanted;
  }
  flags |= MSG_DONTWAIT;
  const iovec* const parts = message.msg_iov;
  long raw = -EINTR;
  while (raw == -EINTR)
    raw =
        with == nullptr && message.msg_iovlen == 1
            ? kernel(SYS_recvfrom, fd, parts[0].iov_base, parts[0].iov_len, flags, nullptr, nullptr)
            : kernel(SYS_recvmsg, fd, &message, flags);
  if (with != nullptr && raw > 0) with->answered(message);
  return raw;
}

// `size`: at most so many, and then how many it has asked for, which many parts make fewer.
Got kernel_receive(const Receiver& receiver, const Ring& ring, int fd, const Span& span,
                   std::size_t& size, Ancillary* with) noexcept {
  iovec parts[kParts];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = span.parts(parts, kParts, size);
  size = Span(parts, message.msg_iovlen).left();
  const long raw = ask_kernel(fd, message, 0, with);
  if (raw <= 0) return {raw, raw};
  return {raw, static_cast<long>(without_doorbell(receiver, ring, parts, message.msg_iovlen,
                                                  static_cast<std::size_t>(raw)))};
}

constexpr std::size_t kSegments = 16;
using Segments = std::array<Receiver::Segment, kSegments>;

// How many segments of the stream are known from here on. Of an open one, those bytes that the
// kernel has.
std::size_t known_segments(Receiver& receiver, const Ring& ring, int fd,
                           Segments& segments) noexcept {
  std::size_t known = receiver.segments(ring, segments);
  if (known == 0 || !segments[known - 1].open() || receiver.watched()) return known;
  // The sender may close it at any moment. What is there now belongs to it if it is open still.
  const long queued = kernel_queued(fd);
  const std::size_t before = known;
  known = receiver.segments(ring, segments);
  if (known != before || !segments[known - 1].open()) return std::min(known, before - 1);
  std::uint64_t closed = 0;
  for (std::size_t i = 0; i + 1 < known; ++i)
    if (!segments[i].in_ring) closed += segments[i].bytes;
  const auto there = static_cast<std::uint64_t>(std::max(queued, 0L));
  segments[known - 1].bytes = there > closed ? there - closed : 0;
  return known;
}

// Parts that the kernel is to fill; and the end of each in the stream.
struct FromKernel {
  iovec* parts;
  std::size_t* ends;
  std::size_t most;
  std::size_t count = 0;
};

// Shows the ring's bytes of the segments in their places, and finds the places of the kernel's.
// How many bytes both are.
std::size_t lay_out(Receiver& receiver, const Ring& ring,
                    std::span<const Receiver::Segment> segments, const Span& to,
                    FromKernel& from) noexcept {
  Span rest = to;
  for (const Receiver::Segment& segment : segments) {
    if (rest.left() == 0 || from.count == from.most) break;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(segment.bytes, rest.left()));
    if (segment.in_ring) {
      receiver.peek(ring, segment.position, rest, size);
      continue;
    }
    const std::size_t made = rest.parts(from.parts + from.count, from.most - from.count, size);
    for (std::size_t k = from.count; k < from.count + made; ++k) {
      rest.skip(from.parts[k].iov_len);
      from.ends[k] = to.left() - rest.left();
    }
    from.count += made;
  }
  return to.left() - rest.left();
}

// Shows the stream from here on, across ring and kernel: the bytes of all kernel segments lie one
// behind the other there, so one call brings them to their places.
long peek_now(Receiver& receiver, const Ring& ring, int fd, Span& to, Ancillary* with) noexcept {
  if (receiver.next(ring).kind == Receiver::Next::broken) return -ECONNRESET;
  Segments segments;
  const std::size_t known = known_segments(receiver, ring, fd, segments);
  // Each segment may begin in the middle of a part.
  const std::size_t most = std::min(to.part_count() + kSegments, kMostParts);
  auto* const parts = static_cast<iovec*>(__builtin_alloca(most * sizeof(iovec)));
  auto* const ends = static_cast<std::size_t*>(__builtin_alloca(most * sizeof(std::size_t)));
  FromKernel from{.parts = parts, .ends = ends, .most = most};
  const std::size_t shown = lay_out(receiver, ring, {segments.data(), known}, to, from);
  const auto result = [](std::size_t size) {
    return size == 0 ? kNothing : static_cast<long>(size);
  };
  if (from.count == 0) return result(shown);
  const std::size_t before = ends[0] - parts[0].iov_len;
  // An error is reported once, and not to who gets bytes.
  if (before != 0 && kernel_queued(fd) <= 0) return result(before);
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = from.count;
  const long raw = ask_kernel(fd, message, MSG_PEEK, with);
  if (raw == 0 && before == 0 && receiver.recover(ring, false))
    return peek_now(receiver, ring, fd, to, with);
  if (raw <= 0) return before != 0 || raw == -EAGAIN ? result(before) : raw;
  std::size_t got =
      without_doorbell(receiver, ring, parts, from.count, static_cast<std::size_t>(raw));
  for (std::size_t k = 0; k < from.count; ++k) {
    if (got < parts[k].iov_len) return result(ends[k] - parts[k].iov_len + got);
    got -= parts[k].iov_len;
    if (got == 0 && with != nullptr && with->came) return result(ends[k]);
  }
  return result(shown);
}

}  // namespace

std::size_t doorbell_among(const Receiver& receiver, const Ring& ring, std::size_t count) noexcept {
  // acquire: pairs with the release before the doorbell was sent
  const std::uint64_t bell = ring.control->doorbell.load(std::memory_order_acquire);
  if (bell == 0) [[likely]]
    return count;
  return static_cast<std::size_t>(
      std::min<std::uint64_t>(bell - 1 - receiver.kernel_taken(), count));
}

std::size_t without_doorbell(const Receiver& receiver, const Ring& ring, const iovec* parts,
                             std::size_t count, std::size_t got) noexcept {
  std::size_t at = doorbell_among(receiver, ring, got);
  if (at == got) [[likely]]
    return got;
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

namespace {

struct Moved {
  std::size_t space;  // in the ring
  long error;         // of the last send; positive: none
};

// Sends `runs`, of what lies in the ring, through the kernel.
Moved move_to_kernel(Sender& sender, const Ring& ring, int fd, Span runs, bool messages) noexcept {
  if (!sender.enter_kernel(ring)) return {.space = 0, .error = 0};
  if (messages) {
    const SentMessages done = send_messages(fd, ring, sender.unread_from(), runs.left());
    if (done.error == -EPROTO) sender.give_up();
    sender.leave_kernel(ring, done.count);
    return {.space = static_cast<std::size_t>(done.space),
            .error = done.error == -EPROTO ? 0 : done.error};
  }
  Moved moved{.space = 0, .error = 0};
  while (runs.left() != 0) {
    moved.error = kernel_send(fd, runs, runs.left(), MSG_NOSIGNAL);
    if (moved.error <= 0) break;
    runs.skip(static_cast<std::size_t>(moved.error));
    moved.space += static_cast<std::size_t>(moved.error);
  }
  sender.leave_kernel(ring, moved.space);
  return moved;
}

}  // namespace

long reclaim_now(Sender& sender, const Ring& ring, int fd, bool always, bool messages) noexcept {
  for (;;) {
    iovec runs[2];
    const std::size_t count = sender.reclaim(ring, always, runs);
    if (count == 0) return 0;
    const Moved moved = move_to_kernel(sender, ring, fd, Span(runs, count), messages);
    sender.reclaimed(ring, moved.space);
    if (moved.error < 0 && moved.error != -EAGAIN) return moved.error;
    if (moved.space == 0 || !sender.left_behind(ring)) return 0;
  }
}

namespace {

int number_of(int fd, int option) noexcept {
  int number = 0;
  socklen_t size = sizeof number;
  return kernel(SYS_getsockopt, fd, SOL_SOCKET, option, &number, &size) == 0 ? number : -1;
}

bool set_number(int fd, int option, int number) noexcept {
  return kernel(SYS_setsockopt, fd, SOL_SOCKET, option, &number, sizeof number) == 0;
}

// The kernel doubles what it is asked for, and tells that.
void set_room(int fd, int asked, int least) noexcept {
  if (set_number(fd, SO_SNDBUFFORCE, asked)) return;
  // Never less than what is needed: who may not ask for more could not set that again.
  if (most_send_room() >= static_cast<std::size_t>(least)) set_number(fd, SO_SNDBUF, asked);
}

}  // namespace

std::size_t most_send_room() noexcept {
  static constinit std::atomic<int> known{0};
  if (const int room = known.load(std::memory_order_relaxed); room != 0)
    return static_cast<std::size_t>(room);
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return 0;
  const int fd = static_cast<int>(made);
  const int room = set_number(fd, SO_SNDBUF, INT_MAX / 2) ? number_of(fd, SO_SNDBUF) : 0;
  kernel(SYS_close, fd);
  if (room <= 0) return 0;
  known.store(room, std::memory_order_relaxed);
  return static_cast<std::size_t>(room);
}

std::size_t send_room_of(int fd) noexcept {
  const int room = number_of(fd, SO_SNDBUF);
  return std::max(room > 0 ? static_cast<std::size_t>(room) : 0, most_send_room());
}

RoomForAll::RoomForAll(int fd, std::size_t bytes) noexcept : fd_(fd) {
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  constexpr std::size_t kMost = INT_MAX / 2;
  if (bytes == 0) return;
  before_ = number_of(fd, SO_SNDBUF);
  if (before_ <= 0) return;
  const int locks = number_of(fd, SO_BUF_LOCK);
  unlocks_ = locks >= 0 && (locks & SOCK_SNDBUF_LOCK) == 0;
  const std::size_t wanted = static_cast<std::size_t>(before_) / 2 + 2 * bytes;
  set_room(fd, static_cast<int>(std::clamp(wanted, kLeast, kMost)), before_);
}

RoomForAll::~RoomForAll() {
  if (before_ <= 0) return;
  set_room(fd_, before_ / 2, before_);
  if (!unlocks_) return;
  // The kernel goes on finding out by itself how much is needed.
  const int locks = number_of(fd_, SO_BUF_LOCK);
  if (locks >= 0) set_number(fd_, SO_BUF_LOCK, locks & ~SOCK_SNDBUF_LOCK);
}

long kernel_queued(int fd) noexcept {
  int bytes = 0;
  const long result = kernel(SYS_ioctl, fd, FIONREAD, &bytes);
  return result < 0 ? result : bytes;
}

long receive_now(Receiver& receiver, const Ring& ring, int fd, Span& to, bool peek,
                 Ancillary* with) noexcept {
  if (peek) return peek_now(receiver, ring, fd, to, with);
  long moved = 0;
  while (to.left() != 0) {
    const Receiver::Next next = receiver.next(ring);
    std::size_t limit = to.left();
    switch (next.kind) {
      case Receiver::Next::ring: {
        const std::size_t size = std::min<std::size_t>(next.bytes, limit);
        if (receiver.take(ring, to, size)) moved += static_cast<long>(size);
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
    const bool is_part = next.kind == Receiver::Next::kernel;
    std::size_t asked = limit;
    const bool drained = limit < to.left() && !is_part;
    const auto [raw, got] = kernel_receive(receiver, ring, fd, to, asked, with);
    if (raw <= 0) {
      if (raw == 0 && receiver.recover(ring, false)) continue;
      if (moved != 0) return moved;
      return raw == -EAGAIN ? kNothing : raw;
    }
    receiver.taken_from_kernel(ring, static_cast<std::size_t>(raw));
    to.skip(static_cast<std::size_t>(got));
    moved += got;
    if (with != nullptr && with->came) return moved;
    // Whatever comes after this announces itself anew.
    if ((drained && asked == limit) || (static_cast<std::size_t>(raw) < asked && !is_part))
      return moved != 0 ? moved : kNothing;
  }
  return moved != 0 ? moved : kNothing;
}

long peek_at_end(Receiver& receiver, const Ring& ring, int fd) noexcept {
  if (!has_hung_up(fd)) return kNothing;
  // Whatever the peer sent before its end is here by now.
  const Receiver::Next next = receiver.next(ring);
  if (next.kind == Receiver::Next::ring || next.kind == Receiver::Next::kernel) return kNothing;
  if (next.kind == Receiver::Next::broken) return -ECONNRESET;
  std::byte one;
  const long got = kernel(SYS_recvfrom, fd, &one, 1, MSG_PEEK | MSG_DONTWAIT, nullptr, nullptr);
  return got == -EAGAIN || got == -EINTR ? kNothing : got;
}

long note_unmarked(Receiver& receiver, const Ring& ring) noexcept {
  if (receiver.next(ring).kind == Receiver::Next::nothing) receiver.watch_for_ever(ring);
  return kNothing;
}

long look_for_end(Receiver& receiver, const Ring& ring, int fd) noexcept {
  const long got = peek_at_end(receiver, ring, fd);
  return got > 0 ? note_unmarked(receiver, ring) : got;
}

}  // namespace farcall::preload
