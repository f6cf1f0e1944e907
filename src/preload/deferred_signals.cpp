// SPDX-License-Identifier: Apache-2.0
#include "preload/deferred_signals.hpp"

#include <signal.h>
#include <ucontext.h>

#include <array>
#include <cstring>

#include "interpose/signals.hpp"
#include "preload/lock.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

namespace detail {
thread_local constinit Section section{};
}  // namespace detail

namespace {

constexpr int kSignals = 64;
constexpr int kFirstQueued = 32;

constexpr std::uint64_t bit(int number) noexcept { return std::uint64_t{1} << (number - 1); }

// By these the processor complains: they cannot wait.
constexpr std::uint64_t kFaults =
    bit(SIGSEGV) | bit(SIGBUS) | bit(SIGFPE) | bit(SIGILL) | bit(SIGTRAP) | bit(SIGSYS);
// The C library's own.
constexpr std::uint64_t kInternal = bit(32) | bit(33);

struct Waiting {
  // Of handlers that are given the number only: how often.
  std::uint64_t plain;
  std::array<std::uint16_t, kSignals> times;
  // Of one that is given all. Until it runs, others stay blocked.
  bool informed;
  siginfo_t info;
  std::uint64_t mask_before;
};
thread_local constinit Waiting waiting{};

bool must_wait(int number) noexcept {
  return detail::section.depth != 0 && number >= 1 && number <= kSignals &&
         (bit(number) & (kFaults | kInternal)) == 0;
}

void raise_again(int number) noexcept {
  kernel(SYS_tgkill, kernel(SYS_getpid), kernel(SYS_gettid), number);
}

}  // namespace

// Each is noted as gone before it comes: its handler may never return.
void detail::deliver() noexcept {
  while (waiting.plain != 0) {
    const int number = __builtin_ctzll(waiting.plain) + 1;
    std::uint16_t& times = waiting.times[static_cast<std::size_t>(number - 1)];
    if (--times == 0) waiting.plain &= ~bit(number);
    section.waiting = waiting.plain != 0 || waiting.informed;
    raise_again(number);
  }
  if (!waiting.informed) return;
  waiting.informed = false;
  section.waiting = false;
  const std::uint64_t mask = waiting.mask_before;
  const int number = waiting.info.si_signo;
  if (kernel(SYS_rt_tgsigqueueinfo, kernel(SYS_getpid), kernel(SYS_gettid), number, &waiting.info) <
      0)
    raise_again(number);
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, kKernelMaskSize);
}

}  // namespace farcall::preload

namespace farcall::interpose {

using namespace preload;  // NOLINT(google-build-using-namespace): defined for that room

// One that is taken away when its signal comes cannot be raised again.
bool wraps_handlers(int flags) noexcept {
  return (static_cast<unsigned>(flags) & static_cast<unsigned>(SA_RESETHAND)) == 0;
}

bool before_handler(int number) noexcept {
  if (!must_wait(number)) return true;
  std::uint16_t& times = waiting.times[static_cast<std::size_t>(number - 1)];
  // As with the kernel, an ordinary signal that waits is not counted twice.
  times = number < kFirstQueued ? 1 : static_cast<std::uint16_t>(times + 1);
  waiting.plain |= bit(number);
  preload::detail::section.waiting = true;
  return false;
}

bool before_handler(int number, siginfo_t* info, void* context) noexcept {
  if (!must_wait(number) || waiting.informed) return true;
  waiting.info = *info;
  auto& mask = static_cast<ucontext_t*>(context)->uc_sigmask;
  std::memcpy(&waiting.mask_before, &mask, sizeof waiting.mask_before);
  // In force when this returns, until deliver().
  const std::uint64_t all = ~(kFaults | kInternal);
  std::memcpy(&mask, &all, sizeof all);
  waiting.informed = true;
  preload::detail::section.waiting = true;
  return false;
}

}  // namespace farcall::interpose
