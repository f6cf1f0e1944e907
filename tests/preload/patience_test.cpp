// SPDX-License-Identifier: Apache-2.0
//
// What a wait without sleep owes to signals.
#include <gtest/gtest.h>
#include <signal.h>
#include <time.h>

#include <cstdint>

#include "preload/waiting.hpp"

namespace farcall::preload {
namespace {

TEST(Patience, OwesNothingToASignalOfAnEarlierWait) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  Patience patience;
  const timespec long_wait{.tv_sec = 0, .tv_nsec = 500'000};
  // After some long waits it pays no more to look, but for a try now and then.
  for (int i = 0; i < 300; ++i) {
    bool raised = false;
    const auto never = [&] {
      // Signals are held only once the first quick looks are over.
      std::uint64_t held = 0;
      kernel(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &held, kKernelMaskSize);
      if (!raised && (held & signal_bit(SIGUSR1)) != 0) {
        raised = true;
        kernel(SYS_tgkill, kernel(SYS_getpid), kernel(SYS_gettid), SIGUSR1);
      }
      return false;
    };
    const Stayed stayed = patience.stay_awake(never, [] { return std::uint32_t{0}; });
    EXPECT_FALSE(stayed);
    ASSERT_EQ(stayed.interruption, raised ? Interruption::ends : Interruption::none) << i;
    kernel(SYS_nanosleep, &long_wait, nullptr);
    patience.slept();
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace farcall::preload
