// SPDX-License-Identifier: Apache-2.0
//
// The C library's functions that install signal handlers. In place of the program's handler a
// wrapper is installed, which first asks the library that this is part of (signals.hpp) and then
// calls the handler; all else about it (flags, mask, stack, what is given to it) is the program's,
// and it never sees a wrapper.
//
// Each handler has a wrapper of its own, once for all: so which handler runs is decided where it
// would be without the library, by the kernel, and there is nothing here that threads, children or
// handlers that install handlers could find half-changed. A program with more than kMost handlers
// has the last ones without a wrapper; then only a sleep is interrupted by them, as the kernel does
// that.
//
// Under a sanitizer, which has wrappers of its own that it needs before a library may run, there
// are none of these.
#include "interpose/signals.hpp"

#include <signal.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "interpose/next.hpp"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

namespace farcall::interpose {
namespace {

constexpr std::size_t kMost = 64;  // handlers of each kind

constexpr int kOneShot = static_cast<int>(SA_RESETHAND);

using Plain = void (*)(int);
using Informed = void (*)(int, siginfo_t*, void*);
using SigactionFunction = int(int, const struct sigaction*, struct sigaction*);
using SignalFunction = Plain(int, Plain);

// What the wrappers call. Filled from the front; what stands there stays.
template <class Handler>
constinit std::array<std::atomic<Handler>, kMost> handlers{};

// A handler that does not run yet. One for a single signal the kernel has taken away for it, and
// left the rest of the action; it is there again, as before the signal.
template <class Handler>
void put_back(int number, Handler wrapper) noexcept {
  SigactionFunction* const real = next<"sigaction", SigactionFunction>();
  struct sigaction now {};
  if (real == nullptr || real(number, nullptr, &now) != 0) return;
  if ((now.sa_flags & kOneShot) == 0 || now.sa_handler != SIG_DFL) return;
  if constexpr (std::is_same_v<Handler, Informed>)
    now.sa_sigaction = wrapper;
  else
    now.sa_handler = wrapper;
  real(number, &now, nullptr);
}

// Not noexcept: a handler may throw, where the program knows what it does, or end the thread.
template <std::size_t kWhich>
void plain_wrapper(int number) {
  if (!before_handler(number)) return put_back<Plain>(number, plain_wrapper<kWhich>);
  handlers<Plain>[kWhich].load(std::memory_order_acquire)(number);
}
template <std::size_t kWhich>
void informed_wrapper(int number, siginfo_t* info, void* context) {
  if (!before_handler(number, info, context))
    return put_back<Informed>(number, informed_wrapper<kWhich>);
  handlers<Informed>[kWhich].load(std::memory_order_acquire)(number, info, context);
}

template <std::size_t... kWhich>
constexpr std::array<Plain, kMost> all_wrappers(Plain, std::index_sequence<kWhich...>) {
  return {plain_wrapper<kWhich>...};
}
template <std::size_t... kWhich>
constexpr std::array<Informed, kMost> all_wrappers(Informed, std::index_sequence<kWhich...>) {
  return {informed_wrapper<kWhich>...};
}
template <class Handler>
constexpr std::array<Handler, kMost> wrappers = all_wrappers(Handler{},
                                                             std::make_index_sequence<kMost>());

// The program's handler behind a wrapper; any other is the program's already.
template <class Handler>
Handler unwrapped(Handler handler) noexcept {
  for (std::size_t i = 0; i < kMost; ++i) {
    const Handler known = handlers<Handler>[i].load(std::memory_order_acquire);
    if (known == nullptr) break;
    if (handler == wrappers<Handler>[i]) return known;
  }
  return handler;
}

template <class Handler>
Handler wrapped(Handler handler) noexcept {
  handler = unwrapped(handler);
  for (std::size_t i = 0; i < kMost; ++i) {
    Handler known = nullptr;
    if (handlers<Handler>[i].compare_exchange_strong(known, handler, std::memory_order_acq_rel,
                                                     std::memory_order_acquire) ||
        known == handler)
      return wrappers<Handler>[i];
  }
  return handler;
}

bool is_handler(Plain disposition) noexcept {
  return disposition != SIG_DFL && disposition != SIG_IGN && disposition != SIG_ERR &&
         disposition != SIG_HOLD;
}

Plain wrapped_disposition(Plain disposition) noexcept {
  return is_handler(disposition) ? wrapped(disposition) : disposition;
}

// Of either kind, as those functions tell of it that know but one.
Plain unwrapped_disposition(Plain disposition) noexcept {
  if (!is_handler(disposition)) return disposition;
  if (const Plain handler = unwrapped(disposition); handler != disposition) return handler;
  struct sigaction either {};  // where both are one word
  either.sa_handler = disposition;
  either.sa_sigaction = unwrapped(either.sa_sigaction);
  return either.sa_handler;
}

int install(int number, const struct sigaction* action, struct sigaction* before) noexcept {
  SigactionFunction* const real = next<"sigaction", SigactionFunction>();
  if (real == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  struct sigaction ours;
  if (action != nullptr) {
    ours = *action;
    if (is_handler(ours.sa_handler)) {
      if ((ours.sa_flags & SA_SIGINFO) != 0)
        ours.sa_sigaction = wrapped(ours.sa_sigaction);
      else
        ours.sa_handler = wrapped(ours.sa_handler);
    }
    action = &ours;
  }
  const int result = real(number, action, before);
  if (result == 0 && before != nullptr)
    before->sa_handler = unwrapped_disposition(before->sa_handler);
  return result;
}

Plain install(SignalFunction* real, int number, Plain disposition) noexcept {
  if (real == nullptr) {
    errno = ENOSYS;
    return SIG_ERR;
  }
  return unwrapped_disposition(real(number, wrapped_disposition(disposition)));
}

// dlsym() is not for handlers, which may install others.
[[maybe_unused]] const bool kLookedUp = [] {
  (void)next<"sigaction", SigactionFunction>();
  (void)next<"signal", SignalFunction>();
  (void)next<"__sysv_signal", SignalFunction>();
  (void)next<"sigset", SignalFunction>();
  return true;
}();

}  // namespace

bool is_wrapped(int number) noexcept {
  SigactionFunction* const real = next<"sigaction", SigactionFunction>();
  struct sigaction now {};
  return real != nullptr && real(number, nullptr, &now) == 0 &&
         unwrapped_disposition(now.sa_handler) != now.sa_handler;
}

}  // namespace farcall::interpose

using namespace farcall::interpose;  // what follows is C's

// siginterrupt() and sigignore() leave the handler what it is, or take it away: they need nothing.
extern "C" {

int sigaction(int number, const struct sigaction* action, struct sigaction* before) noexcept {
  return install(number, action, before);
}
Plain signal(int number, Plain disposition) noexcept {
  return install(next<"signal", SignalFunction>(), number, disposition);
}
Plain sigset(int number, Plain disposition) noexcept {
  return install(next<"sigset", SignalFunction>(), number, disposition);
}
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the C library's names
int __sigaction(int number, const struct sigaction* action, struct sigaction* before) noexcept
    __attribute__((alias("sigaction")));
// What signal() is where only POSIX is asked for.
Plain __sysv_signal(int number, Plain disposition) noexcept {
  return install(next<"__sysv_signal", SignalFunction>(), number, disposition);
}
Plain sysv_signal(int number, Plain disposition) noexcept __attribute__((alias("__sysv_signal")));
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
Plain ssignal(int number, Plain disposition) noexcept __attribute__((alias("signal")));
Plain bsd_signal(int number, Plain disposition) noexcept __attribute__((alias("signal")));

FARCALL_WITHOUT_VERSION(sigaction);
FARCALL_WITHOUT_VERSION(__sigaction);
FARCALL_WITHOUT_VERSION(signal);
FARCALL_WITHOUT_VERSION(sigset);
FARCALL_WITHOUT_VERSION(__sysv_signal);
FARCALL_WITHOUT_VERSION(sysv_signal);
FARCALL_WITHOUT_VERSION(ssignal);
FARCALL_WITHOUT_VERSION(bsd_signal);

}  // extern "C"

#else

namespace farcall::interpose {

bool is_wrapped(int) noexcept { return false; }

}  // namespace farcall::interpose

#endif
