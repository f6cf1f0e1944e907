// SPDX-License-Identifier: Apache-2.0
//
// What sanitizers change for tests.
#pragma once

#include <gtest/gtest.h>

namespace farcall::test {

// How much longer things take than in an optimised program on an idle machine.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kSlow = 10;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlow = 4;
#else
inline constexpr int kSlow = 1;
#endif

// Tests that ThreadSanitizer cannot follow end before they begin.
#if defined(__SANITIZE_THREAD__)
#define FARCALL_SKIP_UNDER_TSAN(reason) GTEST_SKIP() << "ThreadSanitizer " reason
#else
#define FARCALL_SKIP_UNDER_TSAN(reason) static_assert(true)
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FARCALL_SKIP_UNDER_ASAN(reason) GTEST_SKIP() << "AddressSanitizer " reason
#else
#define FARCALL_SKIP_UNDER_ASAN(reason) static_assert(true)
#endif
#define FARCALL_TSAN_CHILD "takes a thread of a forked child for one of its parent"
#define FARCALL_TSAN_ENDED "sees no locks in a thread that has been cancelled or has ended"
#define FARCALL_TSAN_ELSEWHERE "sees no order that another process brings about"

// Sanitizers put functions of their own in front of the library's that install signal handlers: one
// that comes while a call is awake is lost then.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kCountsSignals = false;
#define FARCALL_SKIP_WITHOUT_WRAPPERS() \
  GTEST_SKIP() << "a sanitizer's sigaction() is in front of the library's"
#else
inline constexpr bool kCountsSignals = true;
#define FARCALL_SKIP_WITHOUT_WRAPPERS() static_assert(true)
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

}  // namespace farcall::test
