// SPDX-License-Identifier: Apache-2.0
//
// Signal handlers ask what open(2) and stat(2) ask, whatever they have interrupted.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>
#include <thread>

#include "farcall/wait.hpp"
#include "harness/child.hpp"
#include "process/background.hpp"

namespace farcall::test {
namespace {

constexpr uid_t kStranger = 1;
constexpr int kMostSignals = 2'000;

std::atomic<int> asked{0};

void ask(int) {
  const int before = errno;
  (void)process::is_flooding(kStranger);
  ++asked;
  errno = before;
}

// Ends this process where a handler does not come to its end.
void send_signals_to(pthread_t thread) {
  for (int sent = 1; sent <= kMostSignals; ++sent) {
    if (::pthread_kill(thread, SIGUSR1) != 0 || !eventually([&] { return asked == sent; })) {
      constexpr std::string_view kText = "a handler waits for what it has interrupted\n";
      (void)!::write(STDERR_FILENO, kText.data(), kText.size());
      ::_exit(1);
    }
    for (int i = 0; i < sent % 101; ++i) relax();  // now here, now there
  }
}

TEST(BackgroundHandlers, AskWhoIsBehindWhileTheirThreadAsks) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    process::run_later(kStranger, [] {});
    struct sigaction action {};
    action.sa_handler = ask;
    ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
    std::atomic<bool> done{false};
    std::thread sender([&done, here = ::pthread_self()] {
      send_signals_to(here);
      done = true;
    });
    while (!done)
      if (!process::is_flooding(kStranger)) process::catch_up(kStranger, [] {});
    sender.join();
    EXPECT_EQ(asked, kMostSignals);
  });
}

}  // namespace
}  // namespace farcall::test
