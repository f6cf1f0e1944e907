// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/message_ring.hpp"

#include <algorithm>

#include "farcall/error.hpp"
#include "memory/load_once.hpp"

namespace farcall {

using message_ring::kPiece;
using message_ring::kReady;

void MessageWriter::refuse_mixing() {
  throw MisuseError("a long message is unfinished: write the same message again to go on");
}

Outcome MessageWriter::write_long(std::span<const std::byte> message, Deadline deadline,
                                  std::optional<SignalCount> since) {
  if (!sending_long_) {
    sent_ = 0;
    sending_ = message.size();
    sending_long_ = true;
  } else if (sending_ != message.size()) {
    refuse_mixing();
  }
  do {
    if (!reader_is_open()) {
      sending_long_ = false;
      return Outcome::peer_gone;
    }
    const std::size_t prefix = sent_ == 0 ? sizeof(std::uint64_t) : 0;
    const std::size_t count = std::min(sending_ - sent_, longest_piece() / 2 - prefix);
    const std::size_t needed = message_ring::footprint(prefix + count) + kSpare;
    if (needed > free_bytes()) {
      const Outcome outcome = wait_for_space(needed, deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
    std::byte* space = line(tail_) + message_ring::kHeader;
    if (prefix != 0) {
      const std::uint64_t total = sending_;
      std::memcpy(space, &total, sizeof total);
    }
    copier_.copy(space + prefix, message.data() + sent_, count);
    const bool last = sent_ + count == sending_;
    publish(prefix + count, kReady | kPiece, last ? More::unknown : More::soon);
    observe::note_sent(observed_, message.data() + sent_, count, last ? 1 : 0);
    sent_ += count;
  } while (sent_ < sending_);
  sending_long_ = false;
  return Outcome::ok;
}

Outcome MessageWriter::prepare_poll() {
  const std::size_t needed = message_ring::footprint(longest_piece()) + kSpare;
  return waiter_.prepare_poll(ring_.control->writer, ring_.control->reader, [&] {
    const std::uint64_t head = ring_.control->head.value.load(std::memory_order_acquire);
    return broken_ || tail_ - head > ring_.capacity || needed <= ring_.capacity - (tail_ - head);
  });
}

Outcome MessageReader::fail() noexcept {
  broken_ = true;
  flags_ = 0;
  piece_bytes_ = 0;
  return Outcome::broken;
}

// What is read here is for the counters alone.
void MessageReader::note_piece() noexcept {
  const std::byte* data = line(head_) + message_ring::kHeader;
  std::size_t size = piece_bytes_;
  std::uint64_t total = 0;
  if (to_count_ == 0 && size > sizeof total) {
    std::memcpy(&total, data, sizeof total);
    to_count_ = total;
    data += sizeof total;
    size -= sizeof total;
  }
  to_count_ -= std::min(to_count_, size);
  observe::note_received(observed_, data, size, to_count_ == 0 ? 1 : 0);
}

Outcome MessageReader::wait_for_message(std::uint64_t& header, Deadline deadline,
                                        std::optional<SignalCount> since) {
  if (broken_) return Outcome::broken;
  RingControl& control = *ring_.control;
  publish_before_waiting();
  const auto there = [&] { return (header = look()) != 0; };
  const Outcome outcome = waiter_.wait(control.reader, control.writer, deadline, there,
                                       since ? *since : SignalCount::now());
  const bool is_end = outcome == Outcome::peer_gone && !receiving_long_ && writer_has_finished();
  return is_end ? Outcome::finished : outcome;
}

Outcome MessageReader::read_long(std::span<std::byte> into, std::size_t& size, Deadline deadline,
                                 std::optional<SignalCount> since) {
  // front() has already found the first piece that this call looks at.
  for (;;) {
    std::span<const std::byte> piece;
    const Outcome outcome = front(piece, deadline, since);
    if (outcome != Outcome::ok) return outcome;
    if (!is_piece()) return fail();
    if (!receiving_long_) {
      if (piece.size() <= sizeof(std::uint64_t)) return fail();
      const auto total = load_once<std::uint64_t>(piece.data());
      piece = piece.subspan(sizeof total);
      if (total <= piece.size()) return fail();
      size = total;
      if (total > into.size()) return Outcome::too_big;
      receiving_ = total;
      received_ = 0;
      receiving_long_ = true;
    }
    size = receiving_;
    if (receiving_ > into.size()) throw MisuseError("go on reading with the same buffer");
    if (piece.empty() || piece.size() > receiving_ - received_) return fail();
    copy_memory(into.data() + received_, piece.data(), piece.size());
    received_ += piece.size();
    pop();
    if (received_ == receiving_) {
      receiving_long_ = false;
      return Outcome::ok;
    }
  }
}

Outcome MessageReader::prepare_poll() {
  publish_before_waiting();
  return waiter_.prepare_poll(ring_.control->reader, ring_.control->writer,
                              [&] { return broken_ || look() != 0; });
}

}  // namespace farcall
