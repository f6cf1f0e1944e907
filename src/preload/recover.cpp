// SPDX-License-Identifier: Apache-2.0
//
// What a sender leaves that is killed while it moves bytes from the ring to the kernel, see
// Sender::reclaim. Its program may have been told that all of them are sent, so none may be
// missing; and none may come twice. How far it came can be told where it stopped:
//
//   head.fetch_or(RECLAIMING)    the kernel has had what the last mark says, and nothing since
//   kernel sends                 it has had more: so much of what lies behind the head
//   a mark behind the head       the head is to be moved there
//   head: where the mark is      all is done
#include "preload/packet.hpp"
#include "preload/stream.hpp"

namespace farcall::preload {

bool Receiver::recover(const Ring& ring, bool messages) noexcept {
  const std::uint64_t word = ring.control->head.load(std::memory_order_acquire);
  const std::uint64_t made = ring.control->marks_made.load(std::memory_order_acquire);
  // Where this side has finished the end does not tell of the sender, and what other threads have
  // taken from the kernel is not counted yet.
  if ((word & kReclaiming) == 0 || broken_ || left_ || sleeping_ != 0 ||
      ring.control->receiver_finished.load(std::memory_order_relaxed) != 0)
    return false;
  const std::uint64_t head = word & ~kReclaiming;
  const std::uint64_t bytes = (ring.control->tail.load(std::memory_order_acquire) & ~kFlags) - head;
  if (head - head_ > 2 * ring.size || bytes > ring.size || made - marks_done_ > kMarks) {
    broken_ = true;
    return false;
  }
  // Before a reclaim the last mark stands at the head or before it, and tells what the kernel has
  // had until then. One behind the head is the last but one thing that a reclaim does.
  const Mark& last = ring.control->marks[(made - 1) % kMarks];
  std::uint64_t moved = last.position.load(std::memory_order_relaxed) - head;
  if (moved == 0 || moved > bytes) {
    const std::uint64_t before = last.to.load(std::memory_order_acquire);
    if (before > kernel_taken_) return false;
    moved = kernel_taken_ - before;
    if (messages) moved = space_of_messages(ring, head, bytes, moved);
    if (moved > bytes) return false;
  }
  marks_done_ = made;
  head_ = head + moved;
  ring.control->marks_done.store(made, std::memory_order_release);
  ring.control->head.store(head_, std::memory_order_release);
  return true;
}

}  // namespace farcall::preload
