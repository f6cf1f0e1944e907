// SPDX-License-Identifier: Apache-2.0
#include "preload/lock.hpp"

namespace farcall::preload {

bool Lock::lock_slowly() noexcept {
  constexpr unsigned kSpins = 200;
  constexpr unsigned kYields = 100;
  const std::uint32_t me = this_thread();
  for (unsigned tries = 0;; ++tries) {
    std::uint32_t holder = 0;
    if (holder_.compare_exchange_weak(holder, me, std::memory_order_acquire,
                                      std::memory_order_relaxed))
      return true;
    if (holder == me) return false;
    if (tries < kSpins) {
      relax();
    } else if (tries < kSpins + kYields) {
      kernel(SYS_sched_yield);
    } else {
      // What the dead were about to change is changed by single stores, so it can be gone on from.
      if (holder != 0 && kernel(SYS_tkill, holder, 0) == -ESRCH &&
          holder_.compare_exchange_strong(holder, me, std::memory_order_acquire,
                                          std::memory_order_relaxed))
        return true;
      const timespec moment{.tv_sec = 0, .tv_nsec = 50'000};
      kernel(SYS_nanosleep, &moment, nullptr);
    }
  }
}

}  // namespace farcall::preload
