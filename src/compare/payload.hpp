// SPDX-License-Identifier: Apache-2.0
//
// What messages carry while they are measured, and how their receiver proves that it got them.
//
// A message is seen as 64-byte lines. The first eight bytes of line i hold
//
//   bit 63    62      60..0
//      last   reply   key + sequence number      all of it XORed with i
//
// so a line that was lost, left over from an earlier message, moved or cut off shows. `last` ends
// a phase of the measurement: the two sides need no second way to talk to each other meanwhile.
//
// A message of less than eight bytes carries the low bytes of key + sequence number, inverted in a
// reply, so far as they fit; an empty one carries nothing, and only that it came can be checked.
// Which of them is the last stands in memory that both sides share, written before it is sent.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>

namespace farcall::compare {

struct PayloadError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws PayloadError for line `index`, where `expected` should be; kept out of the loops below.
[[noreturn]] void throw_wrong_payload(std::span<const std::byte> message, std::uint64_t index,
                                      std::uint64_t expected);

class Payload {
 public:
  static constexpr std::size_t kLineBytes = 64;
  static constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

  enum Kind : std::uint64_t { kRequest = 0, kReply = 1ULL << 62 };

  // Both sides use the same key and the same `last_short`, which is 0 at first; sequence numbers
  // are not 0.
  Payload(std::uint64_t key, std::atomic<std::uint64_t>& last_short) noexcept
      : key_(key & (kReply / 4 - 1)), last_short_(last_short) {}

  void stamp(std::span<std::byte> message, std::uint64_t sequence, Kind kind,
             bool last = false) const noexcept {
    // relaxed: whoever receives the message is ordered behind its sender by the message.
    if (last && is_short(message)) last_short_.store(sequence, std::memory_order_relaxed);
    const std::uint64_t word = word_of(message, sequence, kind, last);
    for_each_line(message, [word](std::byte* line, std::size_t bytes, std::uint64_t index) {
      const std::uint64_t value = word ^ index;
      std::memcpy(line, &value, bytes);
    });
  }

  // Whether this is the last message of its phase. Throws PayloadError if it is another message
  // than expected or has not arrived whole.
  bool check(std::span<const std::byte> message, std::uint64_t sequence, Kind kind) const {
    const bool last = is_last(message, sequence);
    const std::uint64_t word = word_of(message, sequence, kind, last);
    for_each_line(message, [&](const std::byte* line, std::size_t bytes, std::uint64_t index) {
      if (differs(line, bytes, word ^ index)) throw_wrong_payload(message, index, word ^ index);
    });
    return last;
  }

  // The number that a message of eight bytes or more carries, before anything of it is checked.
  [[nodiscard]] std::uint64_t sequence_of(std::span<const std::byte> message) const noexcept {
    std::uint64_t word = 0;
    std::memcpy(&word, message.data(), sizeof word);
    return (word & (kReply - 1)) - key_;
  }

  // Checks a request and turns it into its reply, in one pass over the memory.
  bool answer(std::span<std::byte> message, std::uint64_t sequence) const {
    const bool last = is_last(message, sequence);
    const std::uint64_t word = word_of(message, sequence, kRequest, last);
    const std::uint64_t reply = word_of(message, sequence, kReply, last);
    for_each_line(message, [&](std::byte* line, std::size_t bytes, std::uint64_t index) {
      if (differs(line, bytes, word ^ index)) throw_wrong_payload(message, index, word ^ index);
      const std::uint64_t value = reply ^ index;
      std::memcpy(line, &value, bytes);
    });
    return last;
  }

 private:
  static constexpr std::uint64_t kLast = 1ULL << 63;

  static bool is_short(std::span<const std::byte> message) noexcept {
    return message.size() < kWordBytes;
  }
  [[nodiscard]] std::uint64_t word_of(std::span<const std::byte> message, std::uint64_t sequence,
                                      Kind kind, bool last) const noexcept {
    const std::uint64_t word = key_ + sequence;
    if (is_short(message)) return kind == kReply ? ~word : word;
    return word | kind | (last ? kLast : 0);
  }
  [[nodiscard]] bool is_last(std::span<const std::byte> message,
                             std::uint64_t sequence) const noexcept {
    // relaxed: see stamp().
    if (is_short(message)) return last_short_.load(std::memory_order_relaxed) == sequence;
    std::uint64_t word = 0;
    std::memcpy(&word, message.data(), sizeof word);
    return (word & kLast) != 0;
  }
  static bool differs(const std::byte* line, std::size_t bytes, std::uint64_t expected) noexcept {
    std::uint64_t found = expected;  // what lies behind the end of the message cannot be wrong
    std::memcpy(&found, line, bytes);
    return found != expected;
  }
  // Calls `body` with each line's address, number and how many bytes of its word exist: eight,
  // except perhaps in the last line.
  template <class Byte, class Body>
  static void for_each_line(std::span<Byte> message, Body body) {
    const std::size_t whole = (message.size() + kLineBytes - kWordBytes) / kLineBytes;
    for (std::size_t i = 0; i < whole; ++i) body(message.data() + i * kLineBytes, kWordBytes, i);
    const std::size_t rest = whole * kLineBytes;
    if (rest < message.size()) body(message.data() + rest, message.size() - rest, whole);
  }

  std::uint64_t key_;
  std::atomic<std::uint64_t>& last_short_;
};

}  // namespace farcall::compare
