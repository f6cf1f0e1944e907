// SPDX-License-Identifier: Apache-2.0
//
// A stream of bytes from one writer to one reader, in two symmetric halves.
//
//            head                    tail
//             |  read next            |  write next
//   ----------+=======================+------------   data, mapped twice in a row
//    free     |  `tail - head` bytes  |  free
//
// Positions count bytes for ever and are masked when used.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "farcall/ring/ends.hpp"

namespace farcall {

class ByteWriter : public WritingEnd {
 public:
  ByteWriter() noexcept = default;
  ByteWriter(RingView ring, Waiter waiter) noexcept : WritingEnd(ring, waiter) {}

  // Writes at least one byte of `bytes` and as many as fit now; `written` tells how many. With
  // an empty span: ok at once. Outcomes: ok, would_block, timed_out, interrupted (see
  // Waiter::wait), peer_gone, broken; all but ok wrote nothing. A signal that was caught after
  // `since` interrupts every wait in here; without it, one that was caught after that wait began.
  Outcome write_some(std::span<const std::byte> bytes, std::size_t& written, Deadline deadline,
                     std::optional<SignalCount> since = std::nullopt) {
    written = 0;
    if (bytes.empty()) return Outcome::ok;
    std::span<std::byte> space;
    const Outcome outcome = reserve(1, space, deadline, since);
    if (outcome != Outcome::ok) return outcome;
    written = std::min(bytes.size(), space.size());
    copier_.copy(space.data(), bytes.data(), written);
    commit(written);
    return Outcome::ok;
  }

  // Writes all of `bytes`. Where the outcome is not ok, `written` of them have been written.
  Outcome write(std::span<const std::byte> bytes, std::size_t& written, Deadline deadline,
                std::optional<SignalCount> since = std::nullopt);

  // In place: waits for at least `least` free bytes (1 to capacity / 2) and gives all that are
  // free, in one piece; commit(n) then passes the first n of them to the reader. Throws MisuseError
  // where it would wait for more than that.
  Outcome reserve(std::size_t least, std::span<std::byte>& space, Deadline deadline,
                  std::optional<SignalCount> since = std::nullopt) {
    if (!reader_is_open()) return Outcome::peer_gone;
    if (least > free_bytes()) {
      const Outcome outcome = wait_for_free(least, deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
    space = {ring_.data + (tail_ & (ring_.capacity - 1)), free_bytes()};
    return Outcome::ok;
  }

  void commit(std::size_t bytes) noexcept {
    observe::note_sent(observed_, ring_.data + (tail_ & (ring_.capacity - 1)), bytes);
    tail_ += bytes;
    // release: the bytes are visible before the position that covers them.
    ring_.control->tail.value.store(tail_, std::memory_order_release);
    waiter_.wake(ring_.control->writer, ring_.control->reader);
  }

  // Poll for a free byte; see Waiter::prepare_poll.
  Outcome prepare_poll();

 private:
  Outcome wait_for_free(std::size_t least, Deadline deadline, std::optional<SignalCount> since);
};

class ByteReader : public ReadingEnd {
 public:
  ByteReader() noexcept = default;
  ByteReader(RingView ring, Waiter waiter) noexcept : ReadingEnd(ring, waiter) {}

  // Reads at least one byte and as many as are known to be there and fit. With an empty span: ok at
  // once. Outcomes: ok, would_block, timed_out, interrupted, finished, peer_gone, broken. `since`
  // as for a writer.
  Outcome read_some(std::span<std::byte> into, std::size_t& count, Deadline deadline,
                    std::optional<SignalCount> since = std::nullopt) {
    count = 0;
    if (into.empty()) return Outcome::ok;
    std::span<const std::byte> bytes;
    const Outcome outcome = front(1, bytes, deadline, since);
    if (outcome != Outcome::ok) return outcome;
    count = std::min(into.size(), bytes.size());
    copy_memory(into.data(), bytes.data(), count);
    consume(count);
    return Outcome::ok;
  }

  // In place: waits for at least `least` bytes (1 to capacity / 2) and gives all that are there,
  // in one piece, until consume(). The peer can still change them: copy what a decision rests on.
  // Where fewer than `least` remain and the writer has finished: finished, or ok if least is 1.
  // Throws MisuseError where it would wait for more than that.
  Outcome front(std::size_t least, std::span<const std::byte>& bytes, Deadline deadline,
                std::optional<SignalCount> since = std::nullopt) {
    if (least > filled_bytes()) {
      const Outcome outcome = wait_for_bytes(least, deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
    bytes = {ring_.data + (head_ & (ring_.capacity - 1)), filled_bytes()};
    return Outcome::ok;
  }

  void consume(std::size_t bytes) noexcept {
    observe::note_received(observed_, ring_.data + (head_ & (ring_.capacity - 1)), bytes);
    advance(bytes);
  }

  Outcome prepare_poll();

 private:
  [[nodiscard]] std::size_t filled_bytes() const noexcept {
    return static_cast<std::size_t>(tail_ - head_);
  }
  Outcome wait_for_bytes(std::size_t least, Deadline deadline, std::optional<SignalCount> since);

  std::uint64_t tail_ = 0;  // as last seen
};

}  // namespace farcall
