// SPDX-License-Identifier: Apache-2.0
//
// What lies behind the hooks: the kernel itself, and the C library's own functions.
//
// The kernel is called directly wherever the call does not block: that works before anything is
// initialised, in signal handlers and in children of vfork, and passes no hook; a call that is the
// program's own goes to another preloaded library where there is one behind this (see Direct). What
// blocks is called through the C library, where it is a point at which threads can be cancelled.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "interpose/next.hpp"

namespace farcall::preload {

namespace detail {

template <class Argument>
long as_word(Argument argument) noexcept {
  if constexpr (std::is_pointer_v<Argument>)
    return reinterpret_cast<long>(argument);
  else if constexpr (std::is_null_pointer_v<Argument>)
    return 0;
  else
    return static_cast<long>(argument);
}

inline long kernel_call(long number, long a, long b, long c, long d, long e, long f) noexcept {
#if defined(__x86_64__)
  long result;
  register long r10 asm("r10") = d;
  register long r8 asm("r8") = e;
  register long r9 asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 asm("x8") = number;
  register long x0 asm("x0") = a;
  register long x1 asm("x1") = b;
  register long x2 asm("x2") = c;
  register long x3 asm("x3") = d;
  register long x4 asm("x4") = e;
  register long x5 asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(x0)
               : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
               : "memory");
  return x0;
#else
#error "the preload library knows how to call the kernel on x86-64 and arm64 only"
#endif
}

}  // namespace detail

// A system call: its result, or the negative errno. Leaves errno alone.
template <class... Arguments>
long kernel(long number, Arguments... arguments) noexcept {
  static_assert(sizeof...(Arguments) <= 6);
  const long words[7] = {detail::as_word(arguments)..., 0};
  return detail::kernel_call(
      number, words[0], sizeof...(Arguments) > 1 ? words[1] : 0,
      sizeof...(Arguments) > 2 ? words[2] : 0, sizeof...(Arguments) > 3 ? words[3] : 0,
      sizeof...(Arguments) > 4 ? words[4] : 0, sizeof...(Arguments) > 5 ? words[5] : 0);
}

// The size of a signal mask in system calls.
inline constexpr std::size_t kKernelMaskSize = 8;

// The result of a system call as the C library gives it.
inline long with_errno(long result) noexcept {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// What the kernel says of the descriptor at this moment: as in pollfd::revents.
inline short poll_now(int fd, short events) noexcept {
  pollfd look{.fd = fd, .events = events, .revents = 0};
  timespec now{};
  return kernel(SYS_ppoll, &look, 1, &now, nullptr, 0) > 0 ? look.revents : short{0};
}

namespace real {

using interpose::next;
using interpose::Symbol;

// What stands behind ours under that name, unless it is the C library's own: another library that
// was loaded in front of it, too, and wants to be asked. Null if there is none.
void* find_other(const char* name) noexcept;

// A call that the program makes and that does not block: the other library's where there is one,
// else the kernel's. Which, is decided when this library is loaded; before, it is the kernel's.
template <Symbol kSymbol, class Function, class... Parameters>
class Direct {
 public:
  explicit constexpr Direct(long number) noexcept : number_(number) {}
  void look_up() noexcept {
    other_.store(reinterpret_cast<Function*>(find_other(kSymbol.name)), std::memory_order_relaxed);
  }
  // The result, or the negative errno.
  long operator()(Parameters... parameters) const noexcept {
    Function* const other = other_.load(std::memory_order_relaxed);
    if (other == nullptr) [[likely]]
      return kernel(number_, parameters...);
    const int result = other(parameters...);
    return result >= 0 ? result : -errno;
  }

 private:
  long number_;
  std::atomic<Function*> other_{nullptr};
};

}  // namespace real
}  // namespace farcall::preload
