// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <new>

#include "c/pipe.hpp"

namespace farcall::c {

std::size_t MessageReceiver::begin_long(std::span<const std::byte>& piece) noexcept {
  std::uint64_t total = 0;
  if (piece.size() <= sizeof total) return 0;
  std::memcpy(&total, piece.data(), sizeof total);
  piece = piece.subspan(sizeof total);
  return total > piece.size() ? total : 0;
}

Outcome MessageReceiver::receive(std::span<std::byte> into, std::size_t& size, Deadline deadline,
                                 SignalCount since) {
  if (lost_) throw std::bad_alloc();
  if (failed_) return Outcome::broken;
  if (total_ != 0) {
    size = total_;
    if (total_ > into.size()) return Outcome::too_big;
    return receive_long({}, into, deadline, since);
  }
  std::span<const std::byte> piece;
  const Outcome outcome = ring_.front(piece, deadline, since);
  if (outcome != Outcome::ok) return outcome;
  size = piece.size();
  if (ring_.is_piece()) {
    size = begin_long(piece);
    if (size == 0) return fail();
  }
  if (size > into.size()) return Outcome::too_big;
  if (ring_.is_piece()) {
    total_ = size;
    received_ = 0;
    return receive_long(piece, into, deadline, since);
  }
  if (size != 0) std::memcpy(into.data(), piece.data(), size);
  ring_.pop();
  return Outcome::ok;
}

// `piece`: the one at the front of the ring, or none where that is still to be found.
Outcome MessageReceiver::receive_long(std::span<const std::byte> piece, std::span<std::byte> into,
                                      Deadline deadline, SignalCount since) {
  // Once something is kept, all of it is: each byte is copied twice then, and not once more with
  // each call that does not get to the end.
  const auto here = [&] { return kept_ ? kept_.get() : into.data(); };
  for (;;) {
    if (piece.empty()) {
      const Outcome outcome = ring_.front(piece, deadline, since);
      if (outcome == Outcome::finished) return Outcome::peer_gone;  // in the middle of a message
      if (outcome != Outcome::ok) {
        if (!kept_ && received_ != 0) keep(into.first(received_));
        return outcome;
      }
      if (!ring_.is_piece()) return fail();
    }
    if (piece.empty() || piece.size() > total_ - received_) return fail();
    std::memcpy(here() + received_, piece.data(), piece.size());
    received_ += piece.size();
    piece = {};
    ring_.pop();
    if (received_ == total_) break;
  }
  if (kept_) std::memcpy(into.data(), kept_.get(), total_);
  kept_.reset();
  total_ = 0;
  return Outcome::ok;
}

void MessageReceiver::keep(std::span<const std::byte> received) {
  kept_.reset(new (std::nothrow) std::byte[total_]);
  if (!kept_) {
    lost_ = true;
    throw std::bad_alloc();
  }
  std::memcpy(kept_.get(), received.data(), received.size());
}

}  // namespace farcall::c
