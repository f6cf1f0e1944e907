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
#pragma once

#include <algorithm>
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
  static constexpr std::size_t kLeastBytes = sizeof(std::uint64_t);

  enum Kind : std::uint64_t { kRequest = 0, kReply = 1ULL << 62 };

  // Both sides use the same key.
  explicit Payload(std::uint64_t key) noexcept : key_(key & (kReply / 4 - 1)) {}

  // Messages have at least kLeastBytes.
  void stamp(std::span<std::byte> message, std::uint64_t sequence, Kind kind,
             bool last = false) const noexcept {
    const std::uint64_t word = word_of(sequence, kind) | (last ? kLast : 0);
    for_each_line(message, [word](std::byte* line, std::size_t bytes, std::uint64_t index) {
      const std::uint64_t value = word ^ index;
      std::memcpy(line, &value, bytes);
    });
  }

  // Whether this is the last message of its phase. Throws PayloadError if it is another message
  // than expected or has not arrived whole.
  bool check(std::span<const std::byte> message, std::uint64_t sequence, Kind kind) const {
    const bool last = is_last(message);
    const std::uint64_t word = word_of(sequence, kind) | (last ? kLast : 0);
    for_each_line(message, [&](const std::byte* line, std::size_t bytes, std::uint64_t index) {
      if (differs(line, bytes, word ^ index)) throw_wrong_payload(message, index, word ^ index);
    });
    return last;
  }

  // Checks a request and turns it into its reply, in one pass over the memory.
  bool answer(std::span<std::byte> message, std::uint64_t sequence) const {
    const bool last = is_last(message);
    const std::uint64_t word = word_of(sequence, kRequest) | (last ? kLast : 0);
    const std::uint64_t reply = word | kReply;
    for_each_line(message, [&](std::byte* line, std::size_t bytes, std::uint64_t index) {
      if (differs(line, bytes, word ^ index)) throw_wrong_payload(message, index, word ^ index);
      const std::uint64_t value = reply ^ index;
      std::memcpy(line, &value, bytes);
    });
    return last;
  }

 private:
  static constexpr std::uint64_t kLast = 1ULL << 63;

  [[nodiscard]] std::uint64_t word_of(std::uint64_t sequence, Kind kind) const noexcept {
    return (key_ + sequence) | kind;
  }
  static bool is_last(std::span<const std::byte> message) noexcept {
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
    const std::size_t whole = (message.size() + kLineBytes - sizeof(std::uint64_t)) / kLineBytes;
    for (std::size_t i = 0; i < whole; ++i)
      body(message.data() + i * kLineBytes, sizeof(std::uint64_t), i);
    const std::size_t rest = whole * kLineBytes;
    if (rest < message.size()) body(message.data() + rest, message.size() - rest, whole);
  }

  std::uint64_t key_;
};

}  // namespace farcall::compare
