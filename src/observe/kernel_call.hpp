// SPDX-License-Identifier: Apache-2.0
//
// The kernel itself, past whatever stands in front of the C library; errno stays as it is.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <type_traits>

namespace farcall::observe {

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
  const int saved = errno;
  const long result = ::syscall(number, a, b, c, d, e, f);
  const int error = errno;
  errno = saved;
  return result < 0 ? -error : result;
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

}  // namespace farcall::observe
