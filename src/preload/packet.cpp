// SPDX-License-Identifier: Apache-2.0
#include "preload/packet.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>

#include "memory/load_once.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint64_t kHeader = sizeof(std::uint64_t);
constexpr std::uint64_t kAlignment = 64;
constexpr long kEarlyEnd = -100'003;  // see NoBytes

std::atomic_ref<std::uint64_t> header_at(const Ring& memory, std::uint64_t place) noexcept {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory.bytes + place));
}

// Read once, whatever the peer puts there meanwhile. What it means is known by the tail; what was
// read while the sender took it back is thrown away, which ThreadSanitizer cannot know.
#if defined(__SANITIZE_THREAD__)
[[gnu::no_sanitize("thread"), gnu::noinline]] std::uint64_t length_at(const Ring& memory,
                                                                      std::uint64_t at) noexcept {
  return *reinterpret_cast<const volatile std::uint64_t*>(memory.bytes + at);
}
#else
std::uint64_t length_at(const Ring& memory, std::uint64_t at) noexcept {
  return load_once<std::uint64_t>(memory.bytes + at);
}
#endif

// The peer's doorbell stands next: takes it out, unless that has been done.
bool took_doorbell(Receiver& receiver, const Ring& ring, int fd, bool taken) noexcept {
  if (doorbell_among(receiver, ring, 1) != 0) [[likely]]
    return false;
  std::byte bell;
  if (taken || kernel(SYS_recvfrom, fd, &bell, 1, MSG_DONTWAIT, nullptr, nullptr) == 1)
    receiver.taken_from_kernel(ring, 1);
  return true;
}

// kNothing also for a doorbell, behind which there may be more.
long message_from_kernel(Receiver& receiver, const Ring& ring, int fd, const iovec* parts,
                         std::size_t count, bool peek, Ancillary* with,
                         std::size_t& length) noexcept {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  int flags = MSG_DONTWAIT | MSG_TRUNC | (peek ? MSG_PEEK : 0);
  if (with != nullptr) {
    with->ask(message);
    flags |= with->wanted;
  }
  long raw = -EINTR;
  while (raw == -EINTR) raw = kernel(SYS_recvmsg, fd, &message, flags);
  // It has been thrown away.
  if (raw == -EFAULT && !peek) receiver.taken_from_kernel(ring, 1);
  if (raw < 0) return raw == -EAGAIN ? kNothing : raw;
  if (raw == 0) [[unlikely]] {
    const NoBytes meaning = meaning_of_no_bytes(receiver, ring, fd);
    if (meaning == NoBytes::end) return 0;
    if (meaning == NoBytes::early) return kEarlyEnd;
  }
  if (took_doorbell(receiver, ring, fd, !peek)) return kNothing;
  if (!peek) receiver.taken_from_kernel(ring, 1, static_cast<std::size_t>(raw));
  if (with != nullptr) {
    with->answered(message);
    with->is_message = true;
  }
  length = static_cast<std::size_t>(raw);
  return kMessage;
}

}  // namespace

bool has_hung_up(int fd) noexcept {
  return (poll_now(fd, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

bool kernel_readable(int fd) noexcept { return poll_now(fd, POLLIN) != 0; }

bool message_at(const Ring& memory, std::uint64_t position, std::uint64_t bytes,
                RingMessage& found) noexcept {
  if (position % kAlignment != 0 || bytes < space_of_message(0)) return false;
  const std::uint64_t at = position & (memory.size - 1);
  found.length = length_at(memory, at);
  if (found.length > bytes) return false;
  found.space = space_of_message(found.length);
  if (found.space > bytes || found.space > memory.size) return false;
  const std::uint64_t begin = (at + kHeader) & (memory.size - 1);
  const auto first =
      static_cast<std::size_t>(std::min<std::uint64_t>(found.length, memory.size - begin));
  found.parts[0] = {.iov_base = memory.bytes + begin, .iov_len = first};
  found.parts[1] = {.iov_base = memory.bytes,
                    .iov_len = static_cast<std::size_t>(found.length) - first};
  return true;
}

std::uint64_t whole_messages(const Ring& memory, std::uint64_t position, std::uint64_t bytes,
                             std::uint64_t most) noexcept {
  std::uint64_t whole = 0;
  for (RingMessage message{}; message_at(memory, position + whole, bytes - whole, message);
       whole += message.space)
    if (whole + message.space > most) break;
  return whole;
}

std::uint64_t space_of_messages(const Ring& memory, std::uint64_t position, std::uint64_t bytes,
                                std::uint64_t count) noexcept {
  std::uint64_t space = 0;
  for (RingMessage message{}; count != 0; --count, space += message.space)
    if (!message_at(memory, position + space, bytes - space, message)) return bytes + 1;
  return space;
}

std::uint64_t lengths_of_messages(const Ring& memory, std::uint64_t position,
                                  std::uint64_t bytes) noexcept {
  std::uint64_t sum = 0;
  RingMessage message{};
  for (std::uint64_t at = 0; message_at(memory, position + at, bytes - at, message);
       at += message.space)
    sum += message.length;
  return sum;
}

SentMessages send_messages(int fd, const Ring& memory, std::uint64_t position,
                           std::uint64_t bytes) noexcept {
  SentMessages sent{};
  while (sent.space != bytes) {
    RingMessage message{};
    if (!message_at(memory, position + sent.space, bytes - sent.space, message)) {
      sent.error = -EPROTO;
      break;
    }
    const Span whole(message.parts, 2);
    const long result = kernel_send(fd, whole, whole.left(), MSG_NOSIGNAL);
    if (result < 0) {
      sent.error = result;
      break;
    }
    sent.space += message.space;
    ++sent.count;
  }
  return sent;
}

bool Sender::put_message(const Ring& ring, const Span& message, std::size_t room) noexcept {
  const std::uint64_t length = message.left();
  const auto space = static_cast<std::size_t>(space_of_message(length));
  // Those are long, and few of them fill the first pages.
  if (tail_ + space > restart_at_ + 3 * kFirstPages) [[unlikely]]
    restart(ring);
  const std::size_t limit = std::min(room, ring.size);
  if (space > limit) return false;
  if (static_cast<std::size_t>(tail_ - head_seen_) + space > limit && unread(ring) + space > limit)
    return false;
  if (broken_ || refuses(ring, space)) return false;
  if (length == 0) note_empty(ring);
  const std::size_t at = static_cast<std::size_t>(tail_) & (ring.size - 1);
  header_at(ring, at).store(length, std::memory_order_relaxed);
  const std::size_t begin = (at + sizeof length) & (ring.size - 1);
  const std::size_t first = std::min(static_cast<std::size_t>(length), ring.size - begin);
  Span copy = message;
  copy.copy_out(ring.bytes + begin, first, copier_);
  if (first != length) copy.copy_out(ring.bytes, static_cast<std::size_t>(length) - first, copier_);
  return publish_bytes(ring, space);
}

bool Receiver::take_message(const Ring& ring, std::uint64_t available, Span& to, bool peek,
                            std::size_t& length) noexcept {
  RingMessage message{};
  const bool found = message_at(ring, head_, available, message);
  Span copy = to;
  for (const iovec& part : message.parts) {
    const std::size_t size = found ? std::min(part.iov_len, copy.left()) : 0;
    if (size != 0) copy.copy_in(static_cast<const std::byte*>(part.iov_base), size);
  }
  // The sender may have taken it back meanwhile, and written there anew.
  std::atomic_thread_fence(std::memory_order_acquire);
  if (is_moved(ring)) return false;
  broken_ = broken_ || !found;
  if (!found) return false;
  std::uint64_t expected = head_;
  // release: as in take()
  if (!peek &&
      !ring.control->head.compare_exchange_strong(
          expected, head_ + message.space, std::memory_order_release, std::memory_order_relaxed))
    return false;
  if (!peek) head_ += message.space;
  length = static_cast<std::size_t>(message.length);
  to = copy;
  return true;
}

NoBytes meaning_of_no_bytes(const Receiver& receiver, const Ring& ring, int fd) noexcept {
  if (!has_hung_up(fd)) return NoBytes::message;
  if (ring.control == nullptr) return NoBytes::end;
  // What has come is counted as soon as its sender has returned from sending it.
  constexpr int kLooks = 100;
  for (int i = 0; i < kLooks && ring.control->kernel_sending.load(std::memory_order_acquire) != 0;
       ++i)
    kernel(SYS_sched_yield);
  if (!receiver.kernel_has_more(ring)) return NoBytes::end;
  // Where messages have bytes this is none.
  return ring.control->sends_empty.load(std::memory_order_relaxed) != 0 ? NoBytes::message
                                                                        : NoBytes::early;
}

long receive_message_now(Receiver& receiver, const Ring& ring, int fd, const iovec* parts,
                         std::size_t count, bool peek, Ancillary* with,
                         std::size_t& length) noexcept {
  constexpr int kMostTries = 10'000;
  // A peer that takes back again and again is given up for now.
  for (int tries = 0; tries < kMostTries; ++tries) {
    const Receiver::Next next = receiver.next(ring);
    switch (next.kind) {
      case Receiver::Next::ring: {
        Span to(parts, count);
        const std::size_t room = to.left();
        if (!receiver.take_message(ring, next.bytes, to, peek, length)) continue;
        if (with != nullptr) {
          with->told = length > room ? MSG_TRUNC : 0;
          with->is_message = true;
        }
        return kMessage;
      }
      case Receiver::Next::broken: return -ECONNRESET;
      case Receiver::Next::nothing:
        if (!receiver.watched()) return kNothing;
        break;
      case Receiver::Next::kernel: break;
      case Receiver::Next::open:
        // What is there now belongs to this segment if it is open afterwards.
        if (!receiver.watched()) {
          if (!kernel_readable(fd)) return kNothing;
          if (receiver.next(ring).kind != Receiver::Next::open) continue;
        }
        break;
    }
    const std::uint64_t before = receiver.kernel_taken();
    long got = message_from_kernel(receiver, ring, fd, parts, count, peek, with, length);
    // Told so again it is the end, whatever the peer has counted.
    if (got == kEarlyEnd) [[unlikely]]
      got = message_from_kernel(receiver, ring, fd, parts, count, peek, with, length);
    if (got == kEarlyEnd) [[unlikely]]
      got = 0;
    if (got == 0 && receiver.recover(ring, true)) [[unlikely]]
      continue;
    const bool was_doorbell = got == kNothing && receiver.kernel_taken() != before;
    if (!was_doorbell) return got;
  }
  return kNothing;
}

long look_for_end_of_messages(Receiver& receiver, const Ring& ring, int fd) noexcept {
  const long got = peek_at_end(receiver, ring, fd);
  if (got < 0) return got;
  if (got == 0 && meaning_of_no_bytes(receiver, ring, fd) == NoBytes::end) return 0;
  return note_unmarked(receiver, ring);
}

}  // namespace farcall::preload
