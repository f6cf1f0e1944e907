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

void Span::copy_out(std::byte* to, std::size_t size) noexcept {
  walk(size, [&](const std::byte* part, std::size_t here) {
    std::memcpy(to, part, here);
    to += here;
  });
}

void Span::copy_in(const std::byte* from, std::size_t size) noexcept {
  walk(size, [&](std::byte* part, std::size_t here) {
    std::memcpy(part, from, here);
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
  // acquire: pairs with the release in Receiver::take: those bytes have been copied out.
  const std::uint64_t head = ring.control->head.load(std::memory_order_acquire);
  if (head < head_seen_ || head > tail_)
    broken_ = true;
  else
    head_seen_ = head;
  return static_cast<std::size_t>(tail_ - head_seen_);
}

bool Sender::recalled(const Ring& ring) const noexcept {
  return !recall_answered_ && (ring.control->tail.load(std::memory_order_acquire) & kRecall) != 0;
}

std::size_t Sender::answer_recall(const Ring& ring, iovec (&again)[2]) noexcept {
  recall_answered_ = true;
  for_ever_ = true;
  const std::uint64_t done = ring.control->marks_done.load(std::memory_order_acquire);
  const Mark& last = ring.control->marks[(marks_made_ - 1) % kMarks];
  const std::uint64_t open = in_kernel_ ? 1 : 0;
  // A receiver that was in the middle of an older kernel segment has bytes there as well.
  const bool newer = done + open != marks_made_ ||
                     (in_kernel_ && last.from.load(std::memory_order_relaxed) != kernel_sent_);
  use_kernel(ring);
  const std::size_t size = unread(ring);
  ring.control->recall_answer.store(newer || broken_ ? kTooLate : kSentAgain,
                                    std::memory_order_release);
  if (newer || broken_ || size == 0) return 0;
  const std::size_t at = static_cast<std::size_t>(head_seen_) & (ring.size - 1);
  const std::size_t first = std::min(size, ring.size - at);
  again[0] = {.iov_base = ring.bytes + at, .iov_len = first};
  again[1] = {.iov_base = ring.bytes, .iov_len = size - first};
  return first == size ? 1 : 2;
}

Sender::Way Sender::way(const Ring& ring) noexcept {
  if (broken_) return Way::broken;
  if (!in_kernel_) return Way::ring;
  if (for_ever_ || sending_ != 0) return Way::kernel;
  if ((ring.control->tail.load(std::memory_order_relaxed) & kFlags) != 0) return Way::kernel;
  // Spilling in turns would cost a mark each time.
  if (unread(ring) > ring.size / 2) return Way::kernel;
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
  std::size_t free = ring.size - static_cast<std::size_t>(tail_ - head_seen_);
  if (free < wanted) free = ring.size - unread(ring);
  const std::size_t size = std::min(wanted, free);
  if (size == 0 || broken_) return 0;
  const std::size_t at = static_cast<std::size_t>(tail_) & (ring.size - 1);
  const std::size_t first = std::min(size, ring.size - at);
  Span copy = from;
  copy.copy_out(ring.bytes + at, first);
  if (first != size) copy.copy_out(ring.bytes, size - first);
  std::uint64_t expected = tail_;
  // release: pairs with the acquire in Receiver::next
  if (!ring.control->tail.compare_exchange_strong(expected, tail_ + size, std::memory_order_release,
                                                  std::memory_order_relaxed)) {
    if ((expected & ~kFlags) != tail_)
      broken_ = true;
    else
      use_kernel(ring);
    return 0;
  }
  tail_ += size;
  from = copy;
  return size;
}

void Sender::use_kernel(const Ring& ring) noexcept {
  if (in_kernel_) return;
  Mark& mark = ring.control->marks[marks_made_ % kMarks];
  mark.position.store(tail_, std::memory_order_relaxed);
  mark.from.store(kernel_sent_, std::memory_order_relaxed);
  mark.to.store(kOpenEnd, std::memory_order_relaxed);
  // release: pairs with the acquire in Receiver::next
  ring.control->marks_made.store(++marks_made_, std::memory_order_release);
  in_kernel_ = true;
}

void Sender::leave_kernel(const Ring& ring, std::size_t sent) noexcept {
  if (sending_ != 0) --sending_;
  kernel_sent_ += sent;
  if (ring.control != nullptr)
    ring.control->kernel_sent.store(kernel_sent_, std::memory_order_relaxed);
}

// --- Receiver

Receiver::Next Receiver::next(const Ring& ring) noexcept {
  bool overrun = false;
  for (std::uint64_t looks = 0; looks <= 4 * kMarks && !broken_; ++looks) {
    // acquire: the bytes, and the marks that were made before them
    const std::uint64_t tail = ring.control->tail.load(std::memory_order_acquire) & ~kFlags;
    std::uint64_t available = tail - head_;
    if (available > ring.size) break;
    const std::uint64_t made = ring.control->marks_made.load(std::memory_order_acquire);
    if (made != marks_done_) [[unlikely]] {
      if (made < marks_done_ || made - marks_done_ > kMarks) break;
      const Mark& mark = ring.control->marks[marks_done_ % kMarks];
      const std::uint64_t position = mark.position.load(std::memory_order_relaxed);
      if (position == head_) {
        if (mark.from.load(std::memory_order_relaxed) > kernel_taken_) break;
        const std::uint64_t to = mark.to.load(std::memory_order_acquire);
        if (to > kernel_taken_) {
          if (to == kOpenEnd) return {Next::open, kOpenEnd};
          return {Next::kernel, to - kernel_taken_};
        }
        // More can have been read while watched: then the sender closed this mark, could not
        // publish, and opened another one at the same place.
        overrun = to != kernel_taken_;
        ++marks_done_;
        // release: the slot may be written again
        ring.control->marks_done.store(marks_done_, std::memory_order_release);
        continue;
      }
      // The mark may be newer than the tail.
      if (position - head_ > ring.size) break;
      available = std::min(available, position - head_);
    }
    if (overrun) break;
    return {available == 0 ? Next::nothing : Next::ring, available};
  }
  broken_ = true;
  return {Next::broken, 0};
}

std::uint64_t Receiver::kernel_bytes_behind(const Ring& ring,
                                            std::uint64_t ring_bytes) const noexcept {
  if (ring.control->marks_made.load(std::memory_order_acquire) == marks_done_) return 0;
  const Mark& mark = ring.control->marks[marks_done_ % kMarks];
  if (mark.position.load(std::memory_order_relaxed) != head_ + ring_bytes) return 0;
  const std::uint64_t to = mark.to.load(std::memory_order_acquire);
  return to == kOpenEnd ? to : to > kernel_taken_ ? to - kernel_taken_ : 0;
}

bool Receiver::may_have_news(const Ring& ring) const noexcept {
  if ((ring.control->tail.load(std::memory_order_relaxed) & ~kFlags) != head_) return true;
  const std::uint64_t made = ring.control->marks_made.load(std::memory_order_relaxed);
  if (made == marks_done_) return false;
  // In an open segment: has it been closed, or has the kernel got more?
  return made != marks_done_ + 1 ||
         ring.control->marks[marks_done_ % kMarks].to.load(std::memory_order_relaxed) != kOpenEnd ||
         kernel_has_more(ring);
}

void Receiver::peek(const Ring& ring, Span& to, std::size_t size) const noexcept {
  const std::size_t at = static_cast<std::size_t>(head_) & (ring.size - 1);
  const std::size_t first = std::min(size, ring.size - at);
  to.copy_in(ring.bytes + at, first);
  if (first != size) to.copy_in(ring.bytes, size - first);
}

void Receiver::take(const Ring& ring, Span& to, std::size_t size) noexcept {
  peek(ring, to, size);
  head_ += size;
  // release: pairs with the acquire in Sender::unread
  ring.control->head.store(head_, std::memory_order_release);
}

void Receiver::watch(const Ring& ring) noexcept {
  watched_ = true;
  // acquire and release: what the sender published before is read after this, and the sender's
  // next exchange comes after whatever this side did before.
  ring.control->tail.fetch_or(kWatched, std::memory_order_acq_rel);
}

void Receiver::recall(const Ring& ring) noexcept {
  watched_ = true;
  for_ever_ = true;
  const std::uint64_t tail =
      ring.control->tail.fetch_or(kWatched | kRecall, std::memory_order_acq_rel) & ~kFlags;
  if (tail - head_ <= ring.size) head_ = tail;
}

void Receiver::unwatch(const Ring& ring) noexcept {
  if (for_ever_ || sleeping_ != 0) return;
  watched_ = false;
  ring.control->tail.fetch_and(~kWatched, std::memory_order_acq_rel);
}

}  // namespace farcall::preload
