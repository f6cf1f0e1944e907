// SPDX-License-Identifier: Apache-2.0
//
// What a publisher's writing thread shares with others without a lock. Small enough to be explored
// with every order of what its threads do (tests/model/broadcast_test.cpp).
#pragma once

#include <atomic>
#include <cstdint>

#include "farcall/ring/broadcast_ring.hpp"
#include "farcall/wait.hpp"

namespace farcall::broadcast {

// Where the writer goes on, as other threads may read it. Its position is odd while it changes.
class NewestPlace {
 public:
  // By the writer alone.
  void set(BroadcastPlace place) noexcept {
    position_.store(place.position | 1, std::memory_order_relaxed);
    std::atomic_thread_fence(
        std::memory_order_release);  // who sees the number sees that it changes
    number_.store(place.number, std::memory_order_relaxed);
    position_.store(place.position, std::memory_order_release);
  }
  [[nodiscard]] BroadcastPlace get() const noexcept {
    for (;;) {
      // acquire: pairs with the release in set(); the number is not older than the position.
      const BroadcastPlace place{.position = position_.load(std::memory_order_acquire),
                                 .number = number_.load(std::memory_order_relaxed)};
      std::atomic_thread_fence(std::memory_order_acquire);
      if (place.position % 2 == 0 && place.position == position_.load(std::memory_order_relaxed))
        return place;
      relax();
    }
  }

 private:
  std::atomic<std::uint64_t> position_{0};
  std::atomic<std::uint64_t> number_{0};
};

// By the writer, behind what it has written. `look_at_readers` returns those that there are by now,
// each with the two sides of the page that it shares with the writer, and the writer's waiter.
template <class LookAtReaders>
void wake_readers(LookAtReaders look_at_readers) noexcept {
  full_fence();  // pairs with the one of a reader that parks, or has just come
  for (const auto& reader : look_at_readers())
    reader->waiter.wake_after_fence(reader->control().writer, reader->control().reader);
}

}  // namespace farcall::broadcast
