// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/ends.hpp"

namespace farcall {

Outcome WritingEnd::wait_for_space(std::size_t bytes, Deadline deadline,
                                   std::optional<SignalCount> since) {
  if (broken_) return Outcome::broken;
  RingControl& control = *ring_.control;
  waiter_.wake_late(control.writer, control.reader);
  const auto enough = [&] {
    // acquire: pairs with the release in ReadingEnd::publish.
    const std::uint64_t head = control.head.value.load(std::memory_order_acquire);
    if (tail_ - head > ring_.capacity) {
      broken_ = true;
      return true;
    }
    head_ = head;
    return bytes <= free_bytes();
  };
  const Outcome outcome = waiter_.wait(control.writer, control.reader, deadline, enough,
                                       since ? *since : SignalCount::now());
  return broken_ ? Outcome::broken : outcome;
}

void WritingEnd::finish() noexcept {
  // release: pairs with the acquire in Waiter::gone; all that was written is visible before the
  // end.
  ring_.control->writer.state.store(WaitState::kFinished, std::memory_order_release);
  waiter_.wake(ring_.control->writer, ring_.control->reader);
}

void ReadingEnd::finish() noexcept {
  // relaxed: who learns of it touches the ring no more.
  ring_.control->reader.state.store(WaitState::kFinished, std::memory_order_relaxed);
  waiter_.wake(ring_.control->reader, ring_.control->writer);
}

}  // namespace farcall
