// SPDX-License-Identifier: Apache-2.0
//
// Messages from one writer to one reader, in two symmetric halves.
//
// Data is a row of 64-byte lines, mapped twice in a row. A message takes whole lines; its first
// eight bytes are the header, in the same line as the first 56 bytes of the message:
//
//   line i        [ header | 56 bytes of the message           ]
//   line i+1      [ the next 64 bytes                          ]   (only if it is longer)
//   line i+k      [ 0      | not written yet                   ]   <- the reader looks here next
//
//   header        bit 63..34   33         32         31..0
//                 zero         piece      ready      bytes of the message in here
//
// The reader needs nothing but the header to know that a message is there: a small message costs
// one line transfer. Stale bytes never look like a header, because the writer clears the header
// behind a message before it makes the message ready.
//
// A message longer than a quarter of the ring travels in several pieces, so that reading overlaps
// writing. The first piece starts with the size of the whole message, 8 bytes; the last one
// completes that size. Pieces of different messages never mix: there is one writer.
//
// The reader passes its position on through `head`, an eighth of the ring at a time.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>

#include "farcall/ring/ends.hpp"

namespace farcall {

namespace message_ring {

inline constexpr std::uint64_t kReady = 1ULL << 32;
inline constexpr std::uint64_t kPiece = 1ULL << 33;
inline constexpr std::size_t kHeader = sizeof(std::uint64_t);
inline constexpr std::size_t kFirstLine = kLine - kHeader;

// Bytes of ring that a message of `size` bytes takes.
constexpr std::size_t footprint(std::size_t size) noexcept {
  return (size + kHeader + kLine - 1) & ~(kLine - 1);
}
// The longest message that travels in one piece.
constexpr std::size_t longest_piece(std::size_t capacity) noexcept {
  return capacity / 4 - kHeader;
}

inline std::atomic_ref<std::uint64_t> header(std::byte* line) noexcept {
  return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(line));
}

}  // namespace message_ring

class MessageWriter : public WritingEnd {
 public:
  MessageWriter() noexcept = default;
  // The ring must be freshly formatted: a half starts at its beginning.
  MessageWriter(RingView ring, Waiter waiter) noexcept : WritingEnd(ring, waiter) {}

  // Writes one message of any size (0 too). Outcomes: ok, would_block, timed_out, interrupted,
  // peer_gone, broken. Where a message longer than longest_piece() ends with one of the first
  // three, a part may have been written: call again with the same message to go on. Throws
  // MisuseError for any other one then, which no reader gets to see mixed with the first. It is
  // told by a sum of what has gone, as a rule before more goes. One that was changed where it is,
  // after several calls, may be told only before its last piece: its reader gets none of both, and
  // nothing can be written any more. Where nothing has been written any message may be next.
  // A signal that was caught after `since` interrupts every wait in here; without it, one that was
  // caught after that wait began.
  Outcome write(std::span<const std::byte> message, Deadline deadline,
                std::optional<SignalCount> since = std::nullopt) {
    if (message.size() > message_ring::longest_piece(ring_.capacity)) [[unlikely]]
      return write_long(message, deadline, since);
    std::span<std::byte> space;
    const Outcome outcome = find_room(message.size(), space, deadline, since);
    if (outcome != Outcome::ok) return outcome;
    fill(space, message);
    publish(message.size(), message_ring::kReady);
    observe::note_sent(observed_, message.data(), message.size());
    return Outcome::ok;
  }

  // In place: waits for room for a message of `size` bytes, at most longest_piece(); else
  // too_big. commit(n), n <= size, makes the first n bytes a message; without it there is none.
  // Throws MisuseError while a long message is unfinished.
  Outcome reserve(std::size_t size, std::span<std::byte>& space, Deadline deadline,
                  std::optional<SignalCount> since = std::nullopt) {
    if (size > message_ring::longest_piece(ring_.capacity)) return Outcome::too_big;
    const Outcome outcome = find_room(size, space, deadline, since);
    if (outcome == Outcome::ok)
      cleared_ = tail_;  // the caller may write over the header that was cleared ahead
    return outcome;
  }
  void commit(std::size_t size) noexcept {
    observe::note_sent(observed_, line(tail_) + message_ring::kHeader, size);
    publish(size, message_ring::kReady);
  }

  // Poll for room for a message of longest_piece(); see Waiter::prepare_poll.
  Outcome prepare_poll();
  [[nodiscard]] std::size_t longest_piece() const noexcept {
    return message_ring::longest_piece(ring_.capacity);
  }

 private:
  // Beyond the message itself: the header behind it, and one that is cleared ahead of time.
  static constexpr std::size_t kSpare = 3 * kLine;

  [[nodiscard]] std::byte* line(std::uint64_t position) const noexcept {
    return ring_.data + (position & (ring_.capacity - 1));
  }
  Outcome find_room(std::size_t size, std::span<std::byte>& space, Deadline deadline,
                    std::optional<SignalCount> since) {
    if (sending_long_) [[unlikely]]
      refuse_mixing();
    if (!reader_is_open()) return Outcome::peer_gone;
    const std::size_t needed = message_ring::footprint(size) + kSpare;
    if (needed > free_bytes()) {
      const Outcome outcome = wait_for_space(needed, deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
    space = {line(tail_) + message_ring::kHeader, size};
    return Outcome::ok;
  }
  // The line with the header is written last: while it waits for other lines, the reader, who
  // looks at it all the time, would take it away half-written and it had to be fetched again.
  void fill(std::span<std::byte> space, std::span<const std::byte> message) noexcept {
    if (message.size() > message_ring::kFirstLine) {
      copier_.copy(space.data() + message_ring::kFirstLine,
                   message.data() + message_ring::kFirstLine,
                   message.size() - message_ring::kFirstLine);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps this order
      std::memcpy(space.data(), message.data(), message_ring::kFirstLine);
    } else if (!message.empty()) {
      std::memcpy(space.data(), message.data(), message.size());
    }
  }

  enum class More : std::uint8_t { unknown, soon };
  void publish(std::size_t size, std::uint64_t flags, More more = More::unknown) noexcept {
    const std::size_t footprint = message_ring::footprint(size);
    std::byte* const mine = line(tail_);
    const std::uint64_t next = tail_ + footprint;
    // relaxed: ordered before the reader's sight of them by the release below.
    if (cleared_ != next)
      message_ring::header(mine + footprint).store(0, std::memory_order_relaxed);
    // release: the message and the cleared header are visible before the message is ready.
    message_ring::header(mine).store(flags | size, std::memory_order_release);
    tail_ = next;
    if (more == More::soon) [[unlikely]]
      waiter_.wake_with_next(ring_.control->writer, ring_.control->reader);
    else
      waiter_.wake(ring_.control->writer, ring_.control->reader);
    // The next message is likely as long as this one: clear the header behind it now, so that no
    // other line has to be waited for when it is published. Relaxed: nobody looks there before a
    // later release.
    cleared_ = next + footprint;
    if (footprint + kSpare <= free_bytes())
      message_ring::header(line(cleared_)).store(0, std::memory_order_relaxed);
    else
      cleared_ = next;
  }

  Outcome write_long(std::span<const std::byte> message, Deadline deadline,
                     std::optional<SignalCount> since);
  [[noreturn]] static void refuse_mixing();
  // How many bytes of the long message go in the piece that begins there.
  [[nodiscard]] std::size_t piece_at(std::size_t sent) const noexcept;
  // The sum of its bytes up to `end`, of which `sum` is that of those up to `begin`. Both are where
  // pieces begin.
  [[nodiscard]] std::uint64_t sum_to(std::size_t end, std::span<const std::byte> message,
                                     std::size_t begin, std::uint64_t sum) const noexcept;
  void note_gone(std::span<const std::byte> message) noexcept;
  // Throw MisuseError unless this is the message of which a part has gone.
  void check_gone(std::span<const std::byte> message);
  bool go_on(std::span<const std::byte> message);

  // What had gone of the unfinished long message when it was last interrupted.
  struct Gone {
    std::uint64_t sum = 0;
    std::size_t bytes = 0;
    std::size_t checked = 0;          // so many when it was last compared
    const std::byte* from = nullptr;  // where the message was
  };

  std::uint64_t cleared_ = 0;  // the header here is zero already
  std::size_t sent_ = 0;       // bytes of the unfinished long message
  std::size_t sending_ = 0;    // that message's size
  bool sending_long_ = false;
  Gone gone_;
};

class MessageReader : public ReadingEnd {
 public:
  MessageReader() noexcept = default;
  MessageReader(RingView ring, Waiter waiter) noexcept : ReadingEnd(ring, waiter) {}

  // Reads one message into `into`; `size` is its size. Outcomes: ok, would_block, timed_out,
  // interrupted, finished, peer_gone, broken, and too_big where `into` is smaller than `size`:
  // the message is then still there, and of a long one `size` is the peer's word, not a bound.
  // Where a long message ends with would_block, timed_out or interrupted, a part of it may be in
  // `into`: call again with the same buffer to go on; MisuseError is thrown if it is smaller.
  // `since` as for a writer.
  Outcome read(std::span<std::byte> into, std::size_t& size, Deadline deadline,
               std::optional<SignalCount> since = std::nullopt) {
    std::span<const std::byte> piece;
    const Outcome outcome = front(piece, deadline, since);
    if (outcome != Outcome::ok) return outcome;
    if (is_piece() || receiving_long_) [[unlikely]]
      return read_long(into, size, deadline, since);
    size = piece.size();
    if (size > into.size()) return Outcome::too_big;
    copy_memory(into.data(), piece.data(), size);
    pop();
    return Outcome::ok;
  }

  // In place: the next message, or the next piece of a long one (is_piece() then), until pop().
  // The peer can still change it: copy what a decision rests on. `since` as for a writer.
  Outcome front(std::span<const std::byte>& piece, Deadline deadline,
                std::optional<SignalCount> since = std::nullopt) {
    std::uint64_t header = look();
    if (header == 0 || broken_) {
      const Outcome outcome = wait_for_message(header, deadline, since);
      if (outcome != Outcome::ok) return outcome;
    }
    const std::size_t size = static_cast<std::uint32_t>(header);
    flags_ = header - size;
    // Checked once, from a private copy: nothing read later from shared memory is an offset.
    if (size > message_ring::longest_piece(ring_.capacity) || !known(flags_)) [[unlikely]]
      return fail();
    piece_bytes_ = size;
    std::byte* const mine = line(head_);
    if (size > message_ring::kFirstLine) __builtin_prefetch(mine + kLine);
    piece = {mine + message_ring::kHeader, size};
    return Outcome::ok;
  }
  [[nodiscard]] bool is_piece() const noexcept { return flags_ != message_ring::kReady; }

  void pop() noexcept {
    if (is_piece()) [[unlikely]]
      note_piece();
    else
      observe::note_received(observed_, line(head_) + message_ring::kHeader, piece_bytes_);
    advance(message_ring::footprint(piece_bytes_));
  }

  Outcome prepare_poll();

 private:
  [[nodiscard]] std::byte* line(std::uint64_t position) const noexcept {
    return ring_.data + (position & (ring_.capacity - 1));
  }
  // acquire: pairs with the release in MessageWriter::publish.
  [[nodiscard]] std::uint64_t look() const noexcept {
    return message_ring::header(line(head_)).load(std::memory_order_acquire);
  }
  static bool known(std::uint64_t flags) noexcept {
    using namespace message_ring;
    return flags == kReady || flags == (kReady | kPiece);
  }
  Outcome fail() noexcept;
  void note_piece() noexcept;
  Outcome wait_for_message(std::uint64_t& header, Deadline deadline,
                           std::optional<SignalCount> since);
  Outcome read_long(std::span<std::byte> into, std::size_t& size, Deadline deadline,
                    std::optional<SignalCount> since);

  std::uint64_t flags_ = 0;      // of the message at head_
  std::size_t piece_bytes_ = 0;  // of the message at head_
  std::size_t received_ = 0;     // bytes of the unfinished long message
  std::size_t receiving_ = 0;    // that message's size
  std::size_t to_count_ = 0;     // bytes of a long message of which a part has been counted
  bool receiving_long_ = false;
};

}  // namespace farcall
