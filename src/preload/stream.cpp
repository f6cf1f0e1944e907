// SPDX-License-Identifier: Apache-2.0
#include "preload/stream.hpp"

#include <algorithm>
#include <cstring>

namespace farcall::preload {

void start_direction(Direction& direction) noexcept {
  direction.marks[0].to.store(kOpenEnd, std::memory_order_relaxed);
  direction.marks_made.store(1, std::memory_order_relaxed);
  // release: whoever maps the memory later loads tail before the rest
  direction.tail.store(kWatched, std::memory_order_release);
}

Span::Span(const iovec* parts, std::size_t count) noexcept : parts_(parts), count_(count) {
  for (std::size_t i = 0; i < count; ++i) left_ += parts[i].iov_len;
}

template <class Copy>
void Span::walk(std::size_t size, Copy copy) noexcept {
  left_ -= size;
  while (size != 0) {
    const std::size_t here = std::min(size, parts_->iov_len - done_);
    if (here != 0) copy(static_cast<std::byte*>(parts_->iov_base) + done_, here);
    size -= here;
    done_ += here;
    if (done_ == parts_->iov_len && count_ > 1) {
      ++parts_;
      --count_;
      done_ = 0;
    }
  }
}

void Span::copy_out(std::byte* to, std::size_t size, CopyToPeer& copier) noexcept {
  walk(size, [&](const std::byte* part, std::size_t here) {
    copier.copy(to, part, here);
    to += here;
  });
}

namespace {

// Out of the ring. What is copied while the sender takes it back is thrown away afterwards, which
// ThreadSanitizer cannot know.
#if defined(__SANITIZE_THREAD__)
[[gnu::no_sanitize("thread"), gnu::noinline]] void copy_from_ring(std::byte* to,
                                                                  const volatile std::byte* from,
                                                                  std::size_t size) noexcept {
  for (std::size_t i = 0; i < size; ++i) to[i] = from[i];
}
#else
void copy_from_ring(std::byte* to, const std::byte* from, std::size_t size) noexcept {
  copy_memory(to, from, size);
}
#endif

}  // namespace

void Span::copy_in(const std::byte* from, std::size_t size) noexcept {
  walk(size, [&](std::byte* part, std::size_t here) {
    copy_from_ring(part, from, here);
    from += here;
  });
}

void Span::skip(std::size_t size) noexcept {
  walk(size, [](std::byte*, std::size_t) {});
}

std::size_t Span::parts(iovec* to, std::size_t most, std::size_t size) const noexcept {
  std::size_t made = 0;
  std::size_t done = done_;
  for (std::size_t i = 0; i < count_ && made < most && size != 0; ++i, done = 0) {
    const std::size_t here = std::min(size, parts_[i].iov_len - done);
    if (here == 0) continue;
    to[made++] = {.iov_base = static_cast<std::byte*>(parts_[i].iov_base) + done, .iov_len = here};
    size -= here;
  }
  return made;
}

// --- Sender

std::size_t Sender::unread(const Ring& ring) noexcept {
  // acquire: pairs with the exchange in Receiver::take: those bytes have been copied out.
  const std::uint64_t head = ring.control->head.load(std::memory_order_acquire);
  // A flag here was left by a process of this side that died in the middle of a reclaim.
  if (head < head_seen_ || head > tail_)
    broken_ = true;
  else
    head_seen_ = head;
  return static_cast<std::size_t>(tail_ - head_seen_);
}

void Sender::limit(const Ring& ring, std::size_t bytes) noexcept {
  most_in_ring_ = std::min(ring.size, bytes);
  most_beside_ = bytes - most_in_ring_;
}

Sender::Way Sender::way(const Ring& ring, bool has_asked) noexcept {
  if (broken_) return Way::broken;
  if (!in_kernel_) return Way::ring;
  if (for_ever_ || sending_ != 0) return Way::kernel;
  if ((ring.control->tail.load(std::memory_order_relaxed) & kFlags) != 0) return Way::kernel;
  const std::uint64_t taken = ring.control->kernel_taken.load(std::memory_order_acquire);
  if ((must_be_taken_ != 0 && taken < must_be_taken_) || most_in_ring_ == 0) return Way::kernel;
  // Spilling in turns would cost a mark each time.
  if (unread(ring) > ring.size / 2) return Way::kernel;
  if (!has_asked && kernel_sent_ - taken > most_beside_) return Way::crowded;
  if (broken_) return Way::broken;
  // A mark must be left for the way back.
  const std::uint64_t done = ring.control->marks_done.load(std::memory_order_relaxed);
  if (marks_made_ - done >= kMarks) {
    if (done > marks_made_ || marks_made_ - done > kMarks) broken_ = true;
    return broken_ ? Way::broken : Way::kernel;
  }
  // release: pairs with the acquire in Receiver::next; what is published in the ring from now on
  // comes behind these bytes of the kernel.
  ring.control->marks[(marks_made_ - 1) % kMarks].to.store(kernel_sent_, std::memory_order_release);
  in_kernel_ = false;
  return Way::ring;
}

std::size_t Sender::put(const Ring& ring, Span& from) noexcept {
  const std::size_t wanted = from.left();
  // Both sides pay for that, so for long ones it is done less often.
  constexpr std::uint64_t kLeastBetween = 8;
  const std::uint64_t longer = wanted > kFirstPages / kLeastBetween ? kLeastBetween * wanted : 0;
  if (tail_ + wanted > restart_at_ + longer) [[unlikely]]
    restart(ring);
  const std::size_t most = std::min(ring.size, most_in_ring_);
  std::size_t used = static_cast<std::size_t>(tail_ - head_seen_);
  if (used + wanted > most) used = unread(ring);
  const std::size_t size = std::min(wanted, most - std::min(used, most));
  if (size == 0 || broken_ || is_full(ring)) return 0;
  if (refuses(ring, size)) return 0;
  const std::size_t at = static_cast<std::size_t>(tail_) & (ring.size - 1);
  const std::size_t first = std::min(size, ring.size - at);
  Span copy = from;
  copy.copy_out(ring.bytes + at, first, copier_);
  if (first != size) copy.copy_out(ring.bytes, size - first, copier_);
  if (!publish_bytes(ring, size)) return 0;
  from = copy;
  return size;
}

bool Sender::is_full(const Ring& ring) noexcept {
  if (full_until_ == 0) [[likely]]
    return false;
  if (ring.control->kernel_taken.load(std::memory_order_acquire) < full_until_) return true;
  full_until_ = 0;
  return false;
}

// False: the receiver waits for the kernel, or has left.
bool Sender::publish_bytes(const Ring& ring, std::size_t size) noexcept {
  std::uint64_t expected = tail_;
  // release: pairs with the acquire in Receiver::next
  if (!ring.control->tail.compare_exchange_strong(expected, tail_ + size, std::memory_order_release,
                                                  std::memory_order_relaxed)) {
    if ((expected & ~kFlags) != tail_) broken_ = true;
    wrote_in_vain_ = true;
    return false;
  }
  tail_ += size;
  return true;
}

void Sender::restart(const Ring& ring) noexcept {
  if (closed(ring)) return;  // the next bytes that go through it are asked for anew
  restart_at_ = tail_ + kFirstPages;
  if (ring.size <= kFirstPages || (tail_ & (ring.size - 1)) == 0 || unread(ring) != 0 || broken_ ||
      ring.control->kernel_taken.load(std::memory_order_acquire) != kernel_sent_)
    return;
  const std::uint64_t next = (tail_ | (ring.size - 1)) + 1;
  std::uint64_t expected = tail_;
  // The head first: a head before the tail is an empty ring, a tail alone would be bytes.
  if (!ring.control->head.compare_exchange_strong(expected, next, std::memory_order_release,
                                                  std::memory_order_relaxed))
    return;
  ring.control->tail.fetch_add(next - tail_, std::memory_order_release);
  tail_ = head_seen_ = next;
  restart_at_ = next + kFirstPages;
}

void Sender::make_mark(const Ring& ring, std::uint64_t position, std::uint64_t to) noexcept {
  Mark& mark = ring.control->marks[marks_made_ % kMarks];
  mark.position.store(position, std::memory_order_relaxed);
  mark.to.store(to, std::memory_order_relaxed);
  last_mark_ = position;
  // release: pairs with the acquire in Receiver::next
  ring.control->marks_made.store(++marks_made_, std::memory_order_release);
}

void Sender::use_kernel(const Ring& ring) noexcept {
  if (in_kernel_) return;
  make_mark(ring, tail_, kOpenEnd);
  in_kernel_ = true;
}

bool Sender::enter_kernel(const Ring& ring) noexcept {
  ++sending_;
  if (ring.control == nullptr) return true;
  // In one order with the receiver, who asks first and counts then: either this is counted or the
  // question is seen.
  ring.control->kernel_sending.store(sending_, std::memory_order_seq_cst);
  if (!ring.control->handback.look_in_order().is_under_way() || gave_up_leaving_peer_) [[likely]]
    return true;
  ring.control->kernel_sending.store(--sending_, std::memory_order_release);
  return false;
}

void Sender::leave_kernel(const Ring& ring, std::size_t sent, std::size_t bytes) noexcept {
  if (sending_ != 0) --sending_;
  kernel_sent_ += sent;
  message_bytes_ += bytes;
  publish(ring);
}

void Sender::publish(const Ring& ring) const noexcept {
  if (ring.control == nullptr) return;
  ring.control->sends_empty.store(sends_empty_ ? 1 : 0, std::memory_order_relaxed);
  ring.control->message_bytes_sent.store(message_bytes_, std::memory_order_relaxed);
  ring.control->kernel_sent.store(kernel_sent_, std::memory_order_release);
  ring.control->kernel_sending.store(sending_, std::memory_order_release);
}

// --- Receiver

Receiver::Next Receiver::next(const Ring& ring) noexcept {
  bool overrun = false;
  if (left_) return {Next::open, kOpenEnd};
  for (std::uint64_t looks = 0; looks <= 4 * kMarks && !broken_; ++looks) {
    // acquire: the bytes, and the marks that were made before them
    const std::uint64_t word = ring.control->tail.load(std::memory_order_acquire);
    const std::uint64_t tail = word & ~kFlags;
    // After the tail: a tail that was moved on with the head is never taken for bytes.
    if (ring.control->head.load(std::memory_order_acquire) != head_) [[unlikely]] {
      if (!follow(ring)) return {broken_ ? Next::broken : Next::nothing, 0};
      continue;
    }
    std::uint64_t available = tail - head_;
    if (available > ring.size) {
      // The sender is moving both on.
      if (head_ - tail <= ring.size) return {Next::nothing, 0};
      break;
    }
    const std::uint64_t made = ring.control->marks_made.load(std::memory_order_acquire);
    if (made != marks_done_) [[unlikely]] {
      if (made < marks_done_ || made - marks_done_ > kMarks) break;
      const Mark& mark = ring.control->marks[marks_done_ % kMarks];
      const std::uint64_t position = mark.position.load(std::memory_order_relaxed);
      if (position == head_) {
        const std::uint64_t to = mark.to.load(std::memory_order_acquire);
        if (to > kernel_taken_) {
          if (to != kOpenEnd) return {Next::kernel, to - kernel_taken_};
          // The sender may have said so in this side's place, see Sender::reclaim.
          watched_ = watched_ || (word & kWatched) != 0;
          // It stays there; and at an urgent byte the kernel says that it has nothing.
          if (!for_ever_ && ring.control->urgent_sent.load(std::memory_order_relaxed) != 0)
            watch_for_ever(ring);
          return {Next::open, kOpenEnd};
        }
        // More can have been read while watched: then the sender closed this mark, could not
        // publish, and opened another one at the same place.
        overrun = to != kernel_taken_;
        ++marks_done_;
        // release: the slot may be written again
        ring.control->marks_done.store(marks_done_, std::memory_order_release);
        continue;
      }
      // The mark may be newer than the tail, and come of a ring that began anew meanwhile.
      if (position - head_ > ring.size) {
        if (is_moved(ring)) continue;
        break;
      }
      available = std::min(available, position - head_);
    }
    if (overrun) break;
    return {available == 0 ? Next::nothing : Next::ring, available};
  }
  broken_ = true;
  return {Next::broken, 0};
}

std::size_t Receiver::segments(const Ring& ring, std::span<Segment> to) const noexcept {
  const Segment rest{.in_ring = false, .position = 0, .bytes = kOpenEnd};
  std::size_t count = 0;
  std::uint64_t position = head_;
  std::uint64_t done = marks_done_;
  std::uint64_t taken = kernel_taken_;
  const std::uint64_t tail = ring.control->tail.load(std::memory_order_acquire) & ~kFlags;
  const std::uint64_t made = ring.control->marks_made.load(std::memory_order_acquire);
  const bool elsewhere = left_ || ring.control->head.load(std::memory_order_acquire) != head_;
  while (!elsewhere && count < to.size() && tail - position <= ring.size && made - done <= kMarks) {
    std::uint64_t size = tail - position;
    if (done != made) {
      const Mark& mark = ring.control->marks[done % kMarks];
      const std::uint64_t place = mark.position.load(std::memory_order_relaxed);
      if (place == position) {
        const std::uint64_t end = mark.to.load(std::memory_order_acquire);
        ++done;
        if (end <= taken) continue;
        to[count++] = {
            .in_ring = false, .position = 0, .bytes = end == kOpenEnd ? end : end - taken};
        if (end == kOpenEnd) break;
        taken = end;
        continue;
      }
      size = std::min(size, place - position);
    }
    if (size == 0) break;
    to[count++] = {.in_ring = true, .position = position, .bytes = size};
    position += size;
  }
  if (count == 0 && watched_) to[count++] = rest;
  return count;
}

// Who took for news what is none would look, find nothing and sleep; the sender, which is about to
// publish, would have to use the kernel.
bool Receiver::may_have_news(const Ring& ring) const noexcept {
  // The first bytes come while the word is on its way that tells of them, not after it.
  constexpr std::uint64_t kAhead = 256;
  for (std::uint64_t ahead = 0; ahead < kAhead; ahead += kLine)
    __builtin_prefetch(ring.bytes + ((head_ + ahead) & (ring.size - 1)));
  // A sender that has moved both on has put nothing there yet.
  const std::uint64_t tail = ring.control->tail.load(std::memory_order_relaxed) & ~kFlags;
  if (tail != head_ && tail != ring.control->head.load(std::memory_order_relaxed)) return true;
  const std::uint64_t made = ring.control->marks_made.load(std::memory_order_relaxed);
  if (made == marks_done_) return false;
  if (made != marks_done_ + 1) return true;
  const std::uint64_t to =
      ring.control->marks[marks_done_ % kMarks].to.load(std::memory_order_relaxed);
  // A segment that has been closed where this side is: the sender is back at the ring.
  return to == kOpenEnd ? kernel_has_more(ring) : to != kernel_taken_;
}

void Receiver::peek(const Ring& ring, std::uint64_t position, Span& to, std::size_t size) noexcept {
  const std::size_t at = static_cast<std::size_t>(position) & (ring.size - 1);
  const std::size_t first = std::min(size, ring.size - at);
  to.copy_in(ring.bytes + at, first);
  if (first != size) to.copy_in(ring.bytes, size - first);
}

bool Receiver::take(const Ring& ring, Span& to, std::size_t size) noexcept {
  Span copy = to;
  peek(ring, head_, copy, size);
  std::uint64_t expected = head_;
  // release: pairs with the acquire in Sender::unread
  if (!ring.control->head.compare_exchange_strong(expected, head_ + size, std::memory_order_release,
                                                  std::memory_order_relaxed)) [[unlikely]]
    return false;
  head_ += size;
  to = copy;
  return true;
}

void Receiver::taken_from_kernel(const Ring& ring, std::size_t size, std::size_t bytes) noexcept {
  kernel_taken_ += size;
  message_bytes_ += bytes;
  publish(ring);
}

void Receiver::publish(const Ring& ring) const noexcept {
  if (ring.control == nullptr) return;
  ring.control->message_bytes_taken.store(message_bytes_, std::memory_order_relaxed);
  ring.control->kernel_taken.store(kernel_taken_, std::memory_order_release);
}

std::uint64_t Receiver::held(const Ring& ring) noexcept {
  if (next(ring).kind == Next::broken || left_) return 0;
  const std::uint64_t tail = ring.control->tail.load(std::memory_order_acquire) & ~kFlags;
  const bool here = ring.control->head.load(std::memory_order_acquire) == head_;
  return here && tail - head_ <= ring.size ? tail - head_ : 0;
}

bool Receiver::emptied(const Ring& ring) noexcept {
  if (next(ring).kind == Next::broken || left_) return true;
  // acquire: pairs with the release in Sender::reclaimed
  const bool here = ring.control->head.load(std::memory_order_acquire) == head_;
  return here && (ring.control->tail.load(std::memory_order_acquire) & ~kFlags) == head_;
}

void Receiver::watch(const Ring& ring) noexcept {
  watched_ = true;
  // acquire and release: what the sender published before is read after this, and the sender's
  // next exchange comes after whatever this side did before.
  ring.control->tail.fetch_or(kWatched, std::memory_order_acq_rel);
}

void Receiver::leave(const Ring& ring) noexcept {
  watched_ = for_ever_ = left_ = true;
  ring.control->tail.fetch_or(kWatched | kLeft, std::memory_order_acq_rel);
}

void Receiver::unwatch(const Ring& ring) noexcept {
  if (for_ever_ || sleeping_ != 0) return;
  // Whoever takes what was reclaimed while that goes on has not moved on yet. An unwatched sender
  // can move by one beginning anew and one ring full of bytes: this side must not be behind
  // already.
  constexpr int kMostLooks = 8;
  for (int looks = 0; is_moved(ring); ++looks)
    if (looks == kMostLooks || !follow(ring)) return;
  watched_ = false;
  ring.control->tail.fetch_and(~kWatched, std::memory_order_acq_rel);
}

}  // namespace farcall::preload
