// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "process/process_mutex.hpp"

namespace farcall::process {

// One object for each process that asks for it; it outlives main(), as threads do. A forked child
// leaves its parent's where it is, locks and all, and makes its own.
template <class T>
class PerProcess {
 public:
  static T& here() {
    const std::uint64_t now = generation();
    // acquire: pairs with the release below, so that the object is seen whole.
    if (made_in_.load(std::memory_order_acquire) == now) [[likely]]
      return *instance_.load(std::memory_order_relaxed);
    const std::lock_guard guard(lock_);
    if (made_in_.load(std::memory_order_acquire) != now) {
      instance_.store(new T, std::memory_order_relaxed);
      made_in_.store(now, std::memory_order_release);
    }
    return *instance_.load(std::memory_order_relaxed);
  }
  // Null where nobody has asked for it in this process.
  static T* made() noexcept {
    // acquire: as above.
    return made_in_.load(std::memory_order_acquire) == generation()
               ? instance_.load(std::memory_order_relaxed)
               : nullptr;
  }

 private:
  static inline constinit std::atomic<T*> instance_{nullptr};
  static inline constinit std::atomic<std::uint64_t> made_in_{0};
  static inline constinit ProcessMutex lock_;
};

}  // namespace farcall::process
