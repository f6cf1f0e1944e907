// SPDX-License-Identifier: Apache-2.0
#include "preload/udp_lock.hpp"

#include <signal.h>

namespace farcall::preload {

bool frame_has_ended(std::uintptr_t of_holder, std::uintptr_t frame) noexcept {
  if (of_holder == 0 || frame < of_holder) return false;
  stack_t stack{};
  return kernel(SYS_sigaltstack, nullptr, &stack) == 0 && (stack.ss_flags & SS_ONSTACK) == 0;
}

FrameLock::Answer FrameLock::enter_slowly(std::uintptr_t frame) noexcept {
  constexpr unsigned kSpins = 200;
  constexpr unsigned kYields = 100;
  constexpr unsigned kNaps = 2000;  // a tenth of a second
  const std::uint32_t me = this_thread();
  for (unsigned tries = 0; tries < kSpins + kYields + kNaps; ++tries) {
    if (try_enter(frame)) {
      left_behind_.store(false, std::memory_order_relaxed);
      return Answer::held;
    }
    std::uint32_t holder = holder_.load(std::memory_order_relaxed);
    if (holder == me) {
      if (!frame_has_ended(frame_.load(std::memory_order_relaxed), frame)) return Answer::refused;
      frame_.store(frame, std::memory_order_relaxed);
      return Answer::taken_over;
    }
    if (left_behind_.load(std::memory_order_relaxed)) return Answer::refused;
    if (tries < kSpins) {
      relax();
    } else if (tries < kSpins + kYields) {
      kernel(SYS_sched_yield);
    } else {
      // A thread that has ended holds it no more.
      if (holder != 0 && kernel(SYS_tgkill, kernel(SYS_getpid), holder, 0) == -ESRCH &&
          holder_.compare_exchange_strong(holder, me, std::memory_order_acquire,
                                          std::memory_order_relaxed)) {
        frame_.store(frame, std::memory_order_relaxed);
        return Answer::taken_over;
      }
      const timespec moment{.tv_sec = 0, .tv_nsec = 50'000};
      kernel(SYS_nanosleep, &moment, nullptr);
    }
  }
  left_behind_.store(true, std::memory_order_relaxed);
  return Answer::refused;
}

}  // namespace farcall::preload
