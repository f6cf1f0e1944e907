// SPDX-License-Identifier: Apache-2.0
//
// The sender takes bytes back that lie unread in the ring, and the receiver comes after.
#include <algorithm>

#include "preload/stream.hpp"

namespace farcall::preload {

std::size_t Sender::reclaim(const Ring& ring, bool always, iovec (&runs)[2]) noexcept {
  if (in_kernel_ || broken_ || sending_ != 0 || unread(ring) == 0 || broken_ ||
      head_seen_ < last_mark_ ||
      ring.control->receiver_finished.load(std::memory_order_relaxed) != 0)
    return 0;
  // Bytes in the kernel tell the receiver, and these come behind them.
  if (!always && ring.control->kernel_taken.load(std::memory_order_acquire) != kernel_sent_)
    return 0;
  if (marks_made_ - ring.control->marks_done.load(std::memory_order_relaxed) >= kMarks) return 0;
  // acquire and release: from here on the receiver cannot take anything; what it took is counted.
  const std::uint64_t head =
      ring.control->head.fetch_or(kReclaiming, std::memory_order_acq_rel) & ~kReclaiming;
  if (head < head_seen_ || head > tail_) {
    broken_ = true;
    return 0;
  }
  head_seen_ = head;
  if (head == tail_) {
    // It has just taken the rest.
    ring.control->head.store(head, std::memory_order_release);
    return 0;
  }
  // It may be waiting for what the kernel says.
  ring.control->tail.fetch_or(kWatched, std::memory_order_acq_rel);
  return unread_runs(ring, runs);
}

void Sender::reclaimed(const Ring& ring, std::size_t sent) noexcept {
  if (sent != 0) {
    const std::uint64_t position = head_seen_ + sent;
    in_kernel_ = position == tail_;
    full_until_ = in_kernel_ || most_in_ring_ == SIZE_MAX ? 0 : kernel_sent_;
    make_mark(ring, position, in_kernel_ ? kOpenEnd : kernel_sent_);
    head_seen_ = position;
  }
  // release: pairs with the acquire in Receiver::follow: the mark
  ring.control->head.store(head_seen_, std::memory_order_release);
}

bool Sender::left_behind(const Ring& ring) const noexcept {
  if (head_seen_ == tail_) return false;
  // In one order with Receiver::follow: either it sees the head that was just stored, or this sees
  // all that it had taken before.
  full_fence();
  return ring.control->kernel_taken.load(std::memory_order_relaxed) == kernel_sent_;
}

std::size_t Sender::unread_runs(const Ring& ring, iovec (&runs)[2]) const noexcept {
  const std::size_t size = std::min(static_cast<std::size_t>(tail_ - head_seen_), ring.size);
  const std::size_t at = static_cast<std::size_t>(head_seen_) & (ring.size - 1);
  const std::size_t first = std::min(size, ring.size - at);
  runs[0] = {.iov_base = ring.bytes + at, .iov_len = first};
  runs[1] = {.iov_base = ring.bytes, .iov_len = size - first};
  return size == 0 ? 0 : first == size ? 1 : 2;
}

bool Receiver::follow(const Ring& ring) noexcept {
  // acquire: pairs with the release in Sender::reclaimed and ::restart
  std::uint64_t head = ring.control->head.load(std::memory_order_acquire);
  if ((head & kReclaiming) != 0) {
    full_fence();  // pairs with the one in Sender::left_behind
    head = ring.control->head.load(std::memory_order_acquire);
  }
  if ((head & kReclaiming) != 0) {
    // The kernel has them, or is about to. Said here too: an unwatch() may have come in between.
    if (!watched_) watch(ring);
    return false;
  }
  const std::uint64_t moved = head - head_;
  const std::uint64_t tail = ring.control->tail.load(std::memory_order_acquire);
  const std::uint64_t made = ring.control->marks_made.load(std::memory_order_acquire);
  if (moved > 2 * ring.size || made - marks_done_ > kMarks) {
    broken_ = true;
    return false;
  }
  for (; marks_done_ != made; ++marks_done_) {
    // What is left of its kernel segment goes on without a gap in the one behind it.
    const Mark& mark = ring.control->marks[marks_done_ % kMarks];
    if (mark.position.load(std::memory_order_relaxed) - head_ >= moved) break;
  }
  // release: the slots may be written again
  ring.control->marks_done.store(marks_done_, std::memory_order_release);
  head_ = head;
  if ((tail & kWatched) != 0 && !watched_) {
    watched_ = true;
    ++reclaims_;
  }
  return true;
}

}  // namespace farcall::preload
