// SPDX-License-Identifier: Apache-2.0
//
// Fences of which one side pays for both.
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "farcall/wait.hpp"

namespace farcall {
namespace {

bool register_fences() noexcept {
#if defined(__SANITIZE_THREAD__)
  return false;  // it does not know them
#else
  return ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#endif
}

}  // namespace

const std::atomic<bool> detail::kernel_fences{register_fences()};

void asymmetric_fence_heavy() noexcept {
  if (!detail::kernel_fences.load(std::memory_order_relaxed)) {
    full_fence();
    return;
  }
  if (::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return;
  // Forbidden since (seccomp). No processor keeps a store to itself for anything near that long.
  const timespec long_enough{.tv_sec = 0, .tv_nsec = 1'000'000};
  ::syscall(SYS_nanosleep, &long_enough, nullptr);
}

// What a processor keeps to itself are some dozens of stores, each of which takes a microsecond at
// most to be seen. A signal must not make that shorter.
void asymmetric_fence_to_others() noexcept {
  full_fence();
  const timespec until = Deadline::after(std::chrono::microseconds(100)).moment();
  while (::syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0 &&
         errno == EINTR) {
  }
  full_fence();
}

}  // namespace farcall
