// SPDX-License-Identifier: Apache-2.0
#include "farcall/ring/message_ring.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "farcall/error.hpp"
#include "memory/load_once.hpp"

namespace farcall {

using message_ring::kPiece;
using message_ring::kReady;

namespace {

// A sum of bytes. Each step can be undone for a given word: where two pieces differ in one word
// their sums differ, and where in more they are the same once in 2^64.
constexpr std::uint64_t add(std::uint64_t sum, std::uint64_t word) noexcept {
  return std::rotl((sum ^ word) * 0x9e3779b97f4a7c15, 29);
}

std::uint64_t sum_of(std::uint64_t sum, std::span<const std::byte> piece) noexcept {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  std::array<std::uint64_t, 4> lanes{sum, 1, 2, 3};  // that do not wait for each other
  std::array<std::uint64_t, 4> words{};
  while (piece.size() >= sizeof words) {
    std::memcpy(words.data(), piece.data(), sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = add(lanes[i], words[i]);
    piece = piece.subspan(sizeof words);
  }
  words = {};
  if (!piece.empty()) std::memcpy(words.data(), piece.data(), piece.size());
  for (std::size_t i = 0; i * kWord < piece.size(); ++i) lanes[i] = add(lanes[i], words[i]);
  for (const std::uint64_t lane : lanes) sum = add(sum, lane);
  return sum;
}

}  // namespace

void MessageWriter::refuse_mixing() {
  throw MisuseError("a long message is unfinished: write the same message again to go on");
}

std::size_t MessageWriter::piece_at(std::size_t sent) const noexcept {
  const std::size_t prefix = sent == 0 ? sizeof(std::uint64_t) : 0;
  return std::min(sending_ - sent, longest_piece() / 2 - prefix);
}

std::uint64_t MessageWriter::sum_to(std::size_t end, std::span<const std::byte> message,
                                    std::size_t begin, std::uint64_t sum) const noexcept {
  // By pieces: so it is the same sum wherever the message was interrupted.
  while (begin < end) {
    const std::size_t count = piece_at(begin);
    sum = sum_of(sum, message.subspan(begin, count));
    begin += count;
  }
  return sum;
}

void MessageWriter::note_gone(std::span<const std::byte> message) noexcept {
  gone_.sum = sum_to(sent_, message, gone_.bytes, gone_.sum);
  gone_.bytes = sent_;
  gone_.from = message.data();
}

void MessageWriter::check_gone(std::span<const std::byte> message) {
  if (sum_to(gone_.bytes, message, 0, 0) != gone_.sum) refuse_mixing();
  gone_.checked = gone_.bytes;
}

// Returns whether all that has gone has been compared. Who comes again and again for a long message
// would have it looked at as often: where it still is where it was that is done each time that as
// much again has gone, and in the end.
bool MessageWriter::go_on(std::span<const std::byte> message) {
  // A write that has ended with an exception has not said what had gone.
  if (sending_ != message.size() || sent_ != gone_.bytes) refuse_mixing();
  if (message.data() == gone_.from && gone_.bytes < 2 * gone_.checked) return false;
  check_gone(message);
  return true;
}

Outcome MessageWriter::write_long(std::span<const std::byte> message, Deadline deadline,
                                  std::optional<SignalCount> since) {
  bool compared = true;
  if (sending_long_) {
    compared = go_on(message);
  } else {
    sent_ = 0;
    sending_ = message.size();
    sending_long_ = true;
    gone_ = {};
  }
  do {
    if (!reader_is_open()) {
      sending_long_ = false;
      return Outcome::peer_gone;
    }
    const std::size_t prefix = sent_ == 0 ? sizeof(std::uint64_t) : 0;
    const std::size_t count = piece_at(sent_);
    const std::size_t needed = message_ring::footprint(prefix + count) + kSpare;
    if (needed > free_bytes()) {
      const Outcome outcome = wait_for_space(needed, deadline, since);
      if (outcome != Outcome::ok) {
        // Where nothing has gone, or nobody is there, it need not go on.
        sending_long_ = sent_ != 0 && outcome != Outcome::peer_gone;
        if (sending_long_) note_gone(message);
        return outcome;
      }
    }
    const bool last = sent_ + count == sending_;
    if (last && !compared) {
      note_gone(message);
      check_gone(message);
    }
    std::byte* space = line(tail_) + message_ring::kHeader;
    if (prefix != 0) {
      const std::uint64_t total = sending_;
      std::memcpy(space, &total, sizeof total);
    }
    copier_.copy(space + prefix, message.data() + sent_, count);
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
  // Where the last message filled two lines, the next one probably does: its second line is asked
  // for along with the first, not after it. Of a longer one the writer still writes that line.
  const bool two_lines = message_ring::footprint(piece_bytes_) == 2 * kLine;
  const auto there = [&] {
    if (two_lines) __builtin_prefetch(line(head_) + kLine);
    return (header = look()) != 0;
  };
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
