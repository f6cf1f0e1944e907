// SPDX-License-Identifier: Apache-2.0
//
// Signal handlers may fork, also while their thread forks.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "door/scoped_server.hpp"
#include "harness/interrupted.hpp"

namespace farcall::door::test {
namespace {

TEST(ForkingHandlers, RunWhileTheirThreadForks) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  static std::atomic<int> handled = 0;
  in_child([] {
    // Not in the threads that serve.
    sigset_t alarm;
    ::sigemptyset(&alarm);
    ::sigaddset(&alarm, SIGALRM);
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &alarm, nullptr), 0);
    ASSERT_GE(::door_create(echo, nullptr, DOOR_UNREF), 0);
    ASSERT_EQ(::pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr), 0);
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) {
      const int saved = errno;
      fork_and_wait();
      ++handled;
      errno = saved;
    };
    ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
    // One for each fork at most: where a fork takes long, handlers alone would run.
    const Deadline end = Deadline::after(2s);
    for (suseconds_t after = 1; monotonic_ns() < end.at(); after = after % 2000 + 7) {
      const itimerval once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = after}};
      ASSERT_EQ(::setitimer(ITIMER_REAL, &once, nullptr), 0);
      fork_and_wait();
    }
    const itimerval never{};
    EXPECT_EQ(::setitimer(ITIMER_REAL, &never, nullptr), 0);
    EXPECT_GT(handled, 0);
  });
}

// Collectors of garbage stop threads by signals, and hold a lock meanwhile that their handler of
// pthread_atfork(3) waits for.
TEST(ForkingHandlers, OfForkRunWithTheSignalsThatTheProgramLetsThrough) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  static std::atomic<int> blocked = 0;
  static std::atomic<int> seen = 0;
  in_child([] {
    ASSERT_GE(::door_create(echo, nullptr, DOOR_UNREF), 0);
    static const auto look = [] {
      sigset_t now;
      ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
      ++seen;
      if (::sigismember(&now, SIGTERM) != 0) ++blocked;
    };
    ASSERT_EQ(::pthread_atfork(look, look, look), 0);
    const pid_t child = ::fork();
    if (child == 0) ::_exit(blocked == 0 && seen == 2 ? 0 : 1);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(blocked, 0);
    EXPECT_EQ(seen, 2);
  });
}

TEST(ClonedChildren, NeedNoMoreStackThanTheProgramHasGivenThem) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  FARCALL_SKIP_UNDER_ASAN("has a function of its own that needs more");
  in_child([] {
    ASSERT_GE(::door_create(echo, nullptr, 0), 0);
    constexpr std::size_t kSmall = 1024;
    alignas(16) static char stack[kSmall];
    const auto leave = [](void*) -> int { ::_exit(7); };
    const pid_t child = ::clone(leave, stack + kSmall, SIGCHLD, nullptr);
    ASSERT_GT(child, 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 7 << 8);
  });
}

}  // namespace
}  // namespace farcall::door::test
