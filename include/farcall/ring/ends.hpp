// SPDX-License-Identifier: Apache-2.0
//
// What the two ends of a ring of bytes and of a ring of messages have in common: positions, how one
// learns of the other's, and the end.
//
// A position is the end's own; what it saw last of the other's may be old, and is looked at again
// only when that is not enough. Neither believes the other: a position further away than the
// capacity makes an end `broken`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "farcall/ring/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall {

class WritingEnd {
 public:
  // Tells the reader that nothing follows. Idempotent; write no more after it.
  void finish() noexcept;
  // Whether the reader has finished, closed or died.
  [[nodiscard]] bool peer_gone() const noexcept { return waiter_.gone(ring_.control->reader); }

  bool finish_poll() noexcept { return waiter_.finish_poll(ring_.control->writer); }
  [[nodiscard]] int poll_descriptor() const noexcept { return waiter_.poll_descriptor(); }

  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity; }
  // Where what passes is counted: a half of an entry that outlives this one; null: nowhere.
  void observe(observe::Half* half) noexcept {
    observed_ = half;
    waiter_.observe(half);
  }

 protected:
  WritingEnd() noexcept = default;
  WritingEnd(RingView ring, Waiter waiter) noexcept : ring_(ring), waiter_(waiter) {}

  [[nodiscard]] bool reader_is_open() const noexcept {
    return ring_.control->reader.state.load(std::memory_order_relaxed) == WaitState::kOpen;
  }
  [[nodiscard]] std::size_t free_bytes() const noexcept {
    return ring_.capacity - static_cast<std::size_t>(tail_ - head_);
  }
  // Until so many are free; `since` as for write().
  Outcome wait_for_space(std::size_t bytes, Deadline deadline, std::optional<SignalCount> since);

  RingView ring_;
  Waiter waiter_;
  std::uint64_t tail_ = 0;
  std::uint64_t head_ = 0;  // as last seen
  CopyToPeer copier_;
  observe::Half* observed_ = nullptr;
  bool broken_ = false;
};

class ReadingEnd {
 public:
  // Tells the writer that nothing is read any more. Idempotent.
  void finish() noexcept;
  // Whether the writer has finished, closed or died.
  [[nodiscard]] bool peer_gone() const noexcept { return waiter_.gone(ring_.control->writer); }

  bool finish_poll() noexcept { return waiter_.finish_poll(ring_.control->reader); }
  [[nodiscard]] int poll_descriptor() const noexcept { return waiter_.poll_descriptor(); }

  [[nodiscard]] std::size_t capacity() const noexcept { return ring_.capacity; }
  // As WritingEnd::observe().
  void observe(observe::Half* half) noexcept {
    observed_ = half;
    waiter_.observe(half);
  }

 protected:
  ReadingEnd() noexcept = default;
  ReadingEnd(RingView ring, Waiter waiter) noexcept : ring_(ring), waiter_(waiter) {}

  // So many have been read. Passed on in batches: each look of the writer at this line costs both
  // sides a transfer, and a sleeping writer is better woken for an eighth of the ring than for a
  // byte.
  void advance(std::size_t bytes) noexcept {
    head_ += bytes;
    if (head_ - published_ >= ring_.capacity / 8) publish();
  }
  // What has been read must be passed on before sleeping: the writer may be out of space.
  void publish_before_waiting() noexcept {
    if (published_ != head_) publish();
    waiter_.wake_late(ring_.control->reader, ring_.control->writer);
  }
  // Of a wait that has ended with peer_gone.
  [[nodiscard]] bool writer_has_finished() const noexcept {
    // relaxed: the wait has seen the end, and acquired it.
    return ring_.control->writer.state.load(std::memory_order_relaxed) == WaitState::kFinished;
  }

  RingView ring_;
  Waiter waiter_;
  std::uint64_t head_ = 0;
  observe::Half* observed_ = nullptr;
  bool broken_ = false;

 private:
  void publish() noexcept {
    published_ = head_;
    // release: the copies out of the ring are done before the writer may overwrite it.
    ring_.control->head.value.store(head_, std::memory_order_release);
    // A writer that shares the processor is woken for half of the ring, not for an eighth.
    if (head_ - woken_at_ < ring_.capacity / 2) {
      waiter_.wake_with_next(ring_.control->reader, ring_.control->writer);
    } else {
      woken_at_ = head_;
      waiter_.wake(ring_.control->reader, ring_.control->writer);
    }
  }

  std::uint64_t published_ = 0;
  std::uint64_t woken_at_ = 0;
};

}  // namespace farcall
