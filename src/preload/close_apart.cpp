// SPDX-License-Identifier: Apache-2.0
#include "preload/close_apart.hpp"

#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>

#include "preload/proof.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

// What the thread works with, on a stack of its own: for one at a time.
constexpr std::size_t kStack = 16384;
alignas(16) std::byte stack[kStack];
std::atomic<int> last_one{-1};          // the descriptor that is left to it
std::atomic<std::uint32_t> is_last{0};  // it is closed here
std::atomic<std::uint32_t> user{0};     // the process that has it; the kernel clears it

void wait_until_changed(std::atomic<std::uint32_t>& word, std::uint32_t from,
                        const timespec* longest) noexcept {
  kernel(SYS_futex, &word, FUTEX_WAIT, from, longest, nullptr, 0);
}

// In a thread without a place in the C library, so it uses nothing of that. It has a table of
// descriptors of its own, and closes the last one when it ends: then nothing lingers, and nobody
// waits but itself.
int close_by_ending(void*) noexcept {
  const int fd = last_one.load(std::memory_order_relaxed);
  if (fd > 0) kernel(SYS_close_range, 0, fd - 1, 0);
  kernel(SYS_close_range, fd + 1, UINT_MAX, 0);
  while (is_last.load(std::memory_order_acquire) == 0) wait_until_changed(is_last, 0, nullptr);
  kernel(SYS_exit, 0);
  return 0;
}

// False: another thread does so, and does not come to an end.
bool take_stack() noexcept {
  const auto own = static_cast<std::uint32_t>(own_pid());
  constexpr timespec kMoment{.tv_sec = 0, .tv_nsec = 10'000'000};
  for (int tries = 0; tries < 10; ++tries) {
    std::uint32_t before = user.load(std::memory_order_acquire);
    // A child forked meanwhile has not got that thread.
    if (before != own && user.compare_exchange_strong(before, own, std::memory_order_acquire))
      return true;
    if (before == own) wait_until_changed(user, own, &kMoment);
  }
  return false;
}

void close_apart(int fd) noexcept {
  if (!is_private(fd)) return;
  forget_private(fd);
  if (take_stack()) {
    using Clone = int(int (*)(void*), void*, int, void*, ...);
    constexpr int kFlags =
        CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_CHILD_CLEARTID;
    last_one.store(fd, std::memory_order_relaxed);
    is_last.store(0, std::memory_order_relaxed);
    // No handler runs there.
    const std::uint64_t all = ~std::uint64_t{0};
    std::uint64_t before = 0;
    kernel(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, kKernelMaskSize);
    const int thread = real::next<"clone", Clone>()(close_by_ending, stack + kStack, kFlags,
                                                    nullptr, nullptr, nullptr, &user);
    kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kKernelMaskSize);
    if (thread < 0) user.store(0, std::memory_order_release);
  }
  kernel(SYS_close, fd);
  is_last.store(1, std::memory_order_release);
  kernel(SYS_futex, &is_last, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

void close_listener(int listener) noexcept {
  if (is_private(listener) && (poll_now(listener, POLLIN) & POLLIN) != 0)
    close_apart(listener);
  else
    close_private(listener);
}

void close_visitor(int guest) noexcept {
  ucred peer{};
  if (is_private(guest) && !peer_may_share(guest, peer))
    close_apart(guest);
  else
    close_private(guest);
}

}  // namespace farcall::preload
