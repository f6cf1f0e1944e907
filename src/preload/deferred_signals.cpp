// SPDX-License-Identifier: Apache-2.0
#include "preload/deferred_signals.hpp"

#include <signal.h>
#include <ucontext.h>

#include <array>
#include <cstring>
#include <utility>

#include "interpose/signals.hpp"
#include "preload/lock.hpp"
#include "preload/real.hpp"
#include "preload/signals.hpp"

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

// One that stands in front of all of its number that the kernel has queued for this thread. The
// kernel puts what is queued again behind them, so each that comes gets what belongs to the one
// before it, until that one comes.
struct InFront {
  int number;  // 0: there is none
  siginfo_t info;
};
constexpr std::size_t kMostInFront = 4;

// To whom they came is a thread's number: what waits in a copy of its memory, which fork() makes,
// is not the child's, for that begins with no signal pending.
struct Waiting {
  // Of handlers that are given the number only: how often.
  long plain_of;
  std::uint64_t plain;
  std::array<std::uint16_t, kSignals> times;
  // Of one that is given all. Until it runs, others stay blocked.
  bool informed;
  long informed_of;
  siginfo_t info;
  std::uint64_t mask_before;
  long in_front_of;
  std::array<InFront, kMostInFront> in_front;
};
thread_local constinit Waiting waiting{};

bool must_wait(int number) noexcept {
  return detail::section.depth != 0 && number >= 1 && number <= kSignals &&
         (bit(number) & (kFaults | kInternal)) == 0;
}

// While all but these are blocked one that is given all waits.
constexpr std::uint64_t kOthers = ~(kFaults | kInternal);

bool are_others_blocked(std::uint64_t mask) noexcept {
  // The kernel never blocks these.
  return (mask | bit(SIGKILL) | bit(SIGSTOP)) == kOthers;
}

void raise_again(int number) noexcept {
  kernel(SYS_tgkill, kernel(SYS_getpid), kernel(SYS_gettid), number);
}

void queue_again(int number, const siginfo_t& info) noexcept {
  if (kernel(SYS_rt_tgsigqueueinfo, kernel(SYS_getpid), kernel(SYS_gettid), number, &info) < 0)
    raise_again(number);
}

void forget_plain_of_others() noexcept {
  const long me = kernel(SYS_gettid);
  if (waiting.plain_of == me) return;
  const HeldSignals none_comes;
  if (waiting.plain_of == me) return;  // a handler has been here
  waiting.plain = 0;
  waiting.times = {};
  waiting.plain_of = me;
}

InFront* find_in_front(int number) noexcept {
  for (InFront& one : waiting.in_front)
    if (one.number == number) return &one;
  return nullptr;
}

// By this in si_errno, which nobody uses, the one that was queued again is told from the others.
constexpr int kQueuedAgain = 0x66617263;

// With all signals blocked. Where there is no place it comes behind the others.
void queue_in_front(int number, siginfo_t info) noexcept {
  if (const long me = kernel(SYS_gettid); std::exchange(waiting.in_front_of, me) != me)
    waiting.in_front = {};
  // Of ordinary ones none is pending, or the kernel takes both for one.
  if (number >= kFirstQueued && find_in_front(number) == nullptr) {
    if (InFront* const place = find_in_front(0); place != nullptr) {
      *place = {.number = number, .info = info};
      info.si_errno = kQueuedAgain;
    }
  }
  queue_again(number, info);
}

void take_from_front(int number, siginfo_t& info) noexcept {
  InFront* const one = find_in_front(number);
  if (one == nullptr || waiting.in_front_of != kernel(SYS_gettid)) return;
  const bool is_last = info.si_errno == kQueuedAgain;
  std::swap(info, one->info);
  if (is_last) one->number = 0;
}

// Those that are not blocked have come, if nobody has taken them away.
void forget_in_front(std::uint64_t mask) noexcept {
  for (InFront& one : waiting.in_front)
    if (one.number != 0 && (bit(one.number) & mask) == 0) one.number = 0;
}

}  // namespace

// Each is noted as gone before it comes: its handler may never return.
void detail::deliver() noexcept {
  forget_plain_of_others();
  section.waiting = waiting.plain != 0 || waiting.informed;
  while (waiting.plain != 0) {
    const int number = __builtin_ctzll(waiting.plain) + 1;
    std::uint16_t& times = waiting.times[static_cast<std::size_t>(number - 1)];
    if (--times == 0) waiting.plain &= ~bit(number);
    section.waiting = waiting.plain != 0 || waiting.informed;
    raise_again(number);
    forget_plain_of_others();  // where the handler has forked, and this is the child
  }
  if (!waiting.informed) return;
  std::uint64_t mask = 0;
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &kOthers, &mask, kKernelMaskSize);
  // A handler that came until here has had it delivered.
  if (waiting.informed) {
    waiting.informed = false;
    section.waiting = false;
    if (waiting.informed_of == kernel(SYS_gettid))
      queue_in_front(waiting.info.si_signo, waiting.info);
    // Others may not be blocked any more: where another handler was about to run when it came, that
    // has ended since, and the mask that was before either is in force.
    if (are_others_blocked(mask)) mask = waiting.mask_before;
  }
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, kKernelMaskSize);
  forget_in_front(mask);
}

}  // namespace farcall::preload

namespace farcall::interpose {

using namespace preload;  // NOLINT(google-build-using-namespace): defined for that room

bool before_handler(int number) noexcept {
  if (!must_wait(number)) return true;
  forget_plain_of_others();
  std::uint16_t& times = waiting.times[static_cast<std::size_t>(number - 1)];
  // As with the kernel, an ordinary signal that waits is not counted twice.
  times = number < kFirstQueued ? 1 : static_cast<std::uint16_t>(times + 1);
  waiting.plain |= bit(number);
  preload::detail::section.waiting = true;
  return false;
}

bool before_handler(int number, siginfo_t* info, void* context) noexcept {
  take_from_front(number, *info);
  if (!must_wait(number)) return true;
  auto& mask = static_cast<ucontext_t*>(context)->uc_sigmask;
  // Of several that come at once the kernel has prepared the handler that ends last first: its mask
  // is the one that was before them all.
  std::memcpy(&waiting.mask_before, &mask, sizeof waiting.mask_before);
  // In force when this returns, until deliver().
  std::memcpy(&mask, &kOthers, sizeof kOthers);
  if (waiting.informed) {
    // There is a place for one. The kernel keeps the others, which are blocked from here on.
    kernel(SYS_rt_sigprocmask, SIG_SETMASK, &kOthers, nullptr, kKernelMaskSize);
    queue_in_front(number, *info);
    return false;
  }
  waiting.info = *info;
  waiting.informed_of = kernel(SYS_gettid);
  waiting.informed = true;
  preload::detail::section.waiting = true;
  return false;
}

}  // namespace farcall::interpose
