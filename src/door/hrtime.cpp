// SPDX-License-Identifier: Apache-2.0
//
// The clocks of Solaris's <sys/time.h>.
#include <time.h>

#include "farcall/compat/sys/time.h"

namespace {

hrtime_t nanoseconds(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * hrtime_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace

extern "C" {

hrtime_t gethrtime(void) { return nanoseconds(CLOCK_MONOTONIC); }
hrtime_t gethrvtime(void) { return nanoseconds(CLOCK_THREAD_CPUTIME_ID); }

}  // extern "C"
