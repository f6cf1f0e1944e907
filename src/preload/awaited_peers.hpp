// SPDX-License-Identifier: Apache-2.0
//
// Sides that are to be told which sockets are at the other ends of theirs, while the kernel tells
// of all unix sockets, one after the other: a table of open addresses, in memory of the caller's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "preload/diag.hpp"

namespace farcall::preload {

class AwaitedPeers {
 public:
  struct Slot {
    std::uint32_t number;             // of the side's socket; 0: nobody is here
    std::uint32_t index, generation;  // of the side
    std::uint32_t peer_number;        // what is said of the socket itself,
    FoundSocket peer;                 // and of the one that is connected to it
  };

  // `slots` are zero; `size` is a power of two, and more than are ever added.
  AwaitedPeers(Slot* slots, std::size_t size) noexcept : slots_(slots), size_(size) {}

  // The number is not 0.
  void add(std::uint32_t number, std::uint32_t index, std::uint32_t generation) noexcept {
    Slot& slot = place_of(number);
    slot.number = number;
    slot.index = index;
    slot.generation = generation;
  }

  void note(const UnixSocket& socket) noexcept {
    ++noted_;
    if (socket.peer == 0) return;
    if (Slot& slot = place_of(socket.socket.inode); slot.number != 0)
      slot.peer_number = socket.peer;
    if (Slot& slot = place_of(socket.peer); slot.number != 0) slot.peer = socket.socket;
  }
  [[nodiscard]] std::uint32_t noted() const noexcept { return noted_; }

  // Calls each(slot) for those whose `peer` is known: each of the two sockets was said to be the
  // other's. One number alone says nothing, for numbers are given again.
  template <class Each>
  void for_each_found(Each each) const noexcept {
    for (std::size_t i = 0; i < size_; ++i)
      if (slots_[i].number != 0 && slots_[i].peer_number != 0 &&
          slots_[i].peer_number == slots_[i].peer.inode)
        each(slots_[i]);
  }

 private:
  // Where that number stands, or would. Numbers are given in order.
  Slot& place_of(std::uint32_t number) noexcept {
    std::size_t at = number & (size_ - 1);
    while (slots_[at].number != 0 && slots_[at].number != number) at = (at + 1) & (size_ - 1);
    return slots_[at];
  }

  Slot* slots_;
  std::size_t size_;
  std::uint32_t noted_ = 0;
};

}  // namespace farcall::preload
