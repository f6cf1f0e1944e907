// SPDX-License-Identifier: Apache-2.0
//
// How the two ends of a direction pass pieces of what is given back (handback.hpp). A piece lies in
// the ring's memory, which belongs to the receiver, but between a take() of the sender and what it
// says then.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace farcall::preload {

class HandbackWord {
 public:
  enum State : std::uint64_t {
    kNone = 0,
    kAsked = 1,    // by the receiver: nothing is to be sent
    kGiven = 2,    // by the receiver: bytes stand in the ring's memory
    kServing = 3,  // by the sender, which sends them
    kServed = 4,   // by the sender: the kernel has them
    kDone = 5,     // by the receiver: all is in the kernel
    kAgain = 6,    // by the sender: it had been about to publish, and has written over them
    kLost = 7,     // by either: bytes are missing
  };
  // What the word says. Bytes `from` up to `to` of the ring's memory are to be sent; the peer may
  // lie.
  struct Piece {
    State state;
    std::size_t from, to;
    [[nodiscard]] bool is_within(std::size_t size) const noexcept {
      return from <= to && to <= size;
    }
    [[nodiscard]] bool is_under_way() const noexcept {
      return state != kNone && state != kDone && state != kLost;
    }
  };

  // Either end.
  [[nodiscard]] Piece look() const noexcept {
    return piece_of(word_.load(std::memory_order_acquire));
  }
  // Of who has just said that it enters the kernel, or asks: in one order with the other one's.
  [[nodiscard]] Piece look_in_order() const noexcept {
    return piece_of(word_.load(std::memory_order_seq_cst));
  }
  [[nodiscard]] bool is_quiet() const noexcept {
    return word_.load(std::memory_order_relaxed) == kNone;
  }
  void lose() noexcept { word_.store(kLost, std::memory_order_seq_cst); }

  // The receiver.
  void ask() noexcept { word_.store(kAsked, std::memory_order_seq_cst); }
  void give(std::size_t from, std::size_t to) noexcept {
    word_.store(word_of({.state = kGiven, .from = from, .to = to}), std::memory_order_release);
  }
  // Takes a piece back that the sender has not taken.
  bool take_back(const Piece& given) noexcept {
    std::uint64_t word = word_of(given);
    return word_.compare_exchange_strong(word, kAsked, std::memory_order_relaxed);
  }
  void done() noexcept { word_.store(kDone, std::memory_order_release); }

  // The sender. Acquires once more: it may be another piece by now, of the same size.
  bool take(const Piece& given) noexcept {
    std::uint64_t word = word_of(given);
    return word_.compare_exchange_strong(word, kServing, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  void served() noexcept { word_.store(kServed, std::memory_order_release); }
  void again(Piece given) noexcept {
    given.state = kAgain;
    word_.store(word_of(given), std::memory_order_release);
  }

 private:
  static constexpr unsigned kStateBits = 3;
  static constexpr unsigned kPlaceBits = 30;
  static constexpr std::uint64_t word_of(const Piece& piece) noexcept {
    return piece.state | std::uint64_t{piece.from} << kStateBits |
           std::uint64_t{piece.to} << (kStateBits + kPlaceBits);
  }
  static constexpr Piece piece_of(std::uint64_t word) noexcept {
    constexpr std::uint64_t kPlace = (std::uint64_t{1} << kPlaceBits) - 1;
    return {.state = static_cast<State>(word & ((1U << kStateBits) - 1)),
            .from = static_cast<std::size_t>(word >> kStateBits & kPlace),
            .to = static_cast<std::size_t>(word >> (kStateBits + kPlaceBits) & kPlace)};
  }

  std::atomic<std::uint64_t> word_;
};

}  // namespace farcall::preload
