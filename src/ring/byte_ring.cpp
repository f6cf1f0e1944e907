// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/byte_ring.hpp"

#include "farcall/error.hpp"

namespace farcall {

Outcome ByteWriter::write(std::span<const std::byte> bytes, std::size_t& written, Deadline deadline,
                          std::optional<SignalCount> since) {
  written = 0;
  while (written < bytes.size()) {
    std::size_t count = 0;
    const Outcome outcome = write_some(bytes.subspan(written), count, deadline, since);
    if (outcome != Outcome::ok) return outcome;
    written += count;
  }
  return Outcome::ok;
}

Outcome ByteWriter::wait_for_free(std::size_t least, Deadline deadline,
                                  std::optional<SignalCount> since) {
  if (least > ring_.capacity / 2) throw MisuseError("reserve more than half of the ring");
  return wait_for_space(least, deadline, since);
}

Outcome ByteWriter::prepare_poll() {
  return waiter_.prepare_poll(ring_.control->writer, ring_.control->reader, [&] {
    if (broken_ || free_bytes() != 0) return true;
    const std::uint64_t head = ring_.control->head.value.load(std::memory_order_acquire);
    // One that cannot be is for the next write to tell.
    return tail_ - head != ring_.capacity;
  });
}

Outcome ByteReader::wait_for_bytes(std::size_t least, Deadline deadline,
                                   std::optional<SignalCount> since) {
  if (least > ring_.capacity / 2) throw MisuseError("wait for more than half of the ring");
  if (broken_) return Outcome::broken;
  RingControl& control = *ring_.control;
  publish_before_waiting();
  const auto enough = [&] {
    // acquire: pairs with the release in ByteWriter::commit.
    const std::uint64_t tail = control.tail.value.load(std::memory_order_acquire);
    if (tail - head_ > ring_.capacity) {
      broken_ = true;
      return true;
    }
    tail_ = tail;
    return least <= filled_bytes();
  };
  const Outcome outcome = waiter_.wait(control.reader, control.writer, deadline, enough,
                                       since ? *since : SignalCount::now());
  if (broken_) return Outcome::broken;
  return outcome == Outcome::peer_gone && writer_has_finished() ? Outcome::finished : outcome;
}

Outcome ByteReader::prepare_poll() {
  publish_before_waiting();
  return waiter_.prepare_poll(ring_.control->reader, ring_.control->writer, [&] {
    // As above: what has been seen can be read, whatever the writer says now.
    return broken_ || filled_bytes() != 0 ||
           ring_.control->tail.value.load(std::memory_order_acquire) != head_;
  });
}

}  // namespace farcall
