// SPDX-License-Identifier: Apache-2.0
#include "preload/lock.hpp"

#include <poll.h>

namespace farcall::preload {

// A process that nobody has waited for yet still has its number, but is told of by its pidfd.
bool is_dead(std::uint32_t thread) noexcept {
  if (kernel(SYS_tkill, thread, 0) == -ESRCH) return true;
  const long fd = kernel(SYS_pidfd_open, thread, 0);
  if (fd < 0) return false;  // not the first thread of a process; those leave no number behind
  const bool dead = poll_now(static_cast<int>(fd), POLLIN) != 0;
  kernel(SYS_close, fd);
  return dead;
}

bool Lock::lock_slowly() noexcept {
  constexpr unsigned kSpins = 200;
  constexpr unsigned kYields = 100;
  constexpr unsigned kEnough = 20'000;  // a second at least
  for (unsigned tries = 0;; ++tries) {
    std::uint32_t holder = 0;
    if (take_from(holder)) return true;
    if (holder == this_thread()) {
      // A copy of a thread that was made by a bare system call goes by its number until here.
      known_thread = 0;
      const bool mine = holder == this_thread();
      if (mine && detail::section.depth > 1) return false;
      // The copy was killed with it.
      if (mine && tries > kEnough) holder_.compare_exchange_strong(holder, 0);
    }
    if (tries < kSpins) {
      relax();
    } else if (tries < kSpins + kYields) {
      kernel(SYS_sched_yield);
    } else {
      // What the dead were about to change is changed by single stores, so it can be gone on from.
      if (holder != 0 && is_dead(holder) && take_from(holder)) return true;
      const timespec moment{.tv_sec = 0, .tv_nsec = 50'000};
      kernel(SYS_nanosleep, &moment, nullptr);
    }
  }
}

}  // namespace farcall::preload
