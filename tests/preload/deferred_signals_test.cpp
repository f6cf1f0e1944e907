// SPDX-License-Identifier: Apache-2.0
//
// Signals that come while their thread holds a lock of the library wait until it is free, and are
// then as they would have been.
#include "preload/deferred_signals.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "interpose/signals.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

std::vector<int> came;     // the numbers of the signals, or what came with them
std::uint64_t mask_there;  // what was blocked in the last handler

std::uint64_t blocked() {
  std::uint64_t mask = 0;
  kernel(SYS_rt_sigprocmask, SIG_BLOCK, nullptr, &mask, kKernelMaskSize);
  return mask;
}

constexpr std::uint64_t bit(int number) { return std::uint64_t{1} << (number - 1); }

// As the wrappers of interpose/signals.cpp, which go before a program's handlers.
void plain(int number) {
  if (!interpose::before_handler(number)) return;
  came.push_back(number);
  mask_there = blocked();
}
void informed(int number, siginfo_t* info, void* context) {
  if (!interpose::before_handler(number, info, context)) return;
  came.push_back(info->si_value.sival_int);
  mask_there = blocked();
}

class DeferredSignals : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "ThreadSanitizer keeps signals back itself";
#endif
    came.clear();
    came.reserve(16);
  }
  void TearDown() override {
    for (const int number : {SIGUSR1, SIGUSR2, SIGRTMIN + 1, SIGRTMIN + 2, SIGRTMIN + 3})
      ::signal(number, SIG_DFL);
  }
  static void handle(int number, bool all, std::uint64_t blocks = 0) {
    // Without the C library, of which sanitizers have one of their own.
    struct sigaction action {};
    if (all)
      action.sa_sigaction = informed;
    else
      action.sa_handler = plain;
    action.sa_flags = all ? SA_SIGINFO : 0;
    std::memcpy(&action.sa_mask, &blocks, sizeof blocks);
    ASSERT_EQ(::sigaction(number, &action, nullptr), 0);
  }
  static void raise(int number) {
    ASSERT_EQ(kernel(SYS_tgkill, kernel(SYS_getpid), kernel(SYS_gettid), number), 0);
  }
  // As sigqueue(), to this thread.
  static void queue(int number, int value) {
    siginfo_t info{};
    info.si_signo = number;
    info.si_code = SI_QUEUE;
    info.si_value.sival_int = value;
    ASSERT_EQ(kernel(SYS_rt_tgsigqueueinfo, kernel(SYS_getpid), kernel(SYS_gettid), number, &info),
              0);
  }
};

TEST_F(DeferredSignals, RunAtOnceWhereNoLockIsHeld) {
  handle(SIGUSR1, false);
  raise(SIGUSR1);
  EXPECT_EQ(came, std::vector{SIGUSR1});
}

TEST_F(DeferredSignals, WaitForTheLastOfTheLocks) {
  handle(SIGUSR1, false);
  enter_section();
  enter_section();
  raise(SIGUSR1);
  leave_section();
  EXPECT_TRUE(came.empty());
  leave_section();
  EXPECT_EQ(came, std::vector{SIGUSR1});
  raise(SIGUSR1);
  EXPECT_EQ(came.size(), 2U);
}

TEST_F(DeferredSignals, OfSeveralNumbersAllCome) {
  handle(SIGUSR1, false);
  handle(SIGUSR2, false);
  enter_section();
  raise(SIGUSR2);
  raise(SIGUSR1);
  leave_section();
  ASSERT_EQ(came.size(), 2U);
  EXPECT_EQ(came[0] + came[1], SIGUSR1 + SIGUSR2);
}

TEST_F(DeferredSignals, CountAsTheKernelCountsThem) {
  const int queued = SIGRTMIN + 1;
  handle(SIGUSR1, false);
  handle(queued, false);
  enter_section();
  for (int i = 0; i < 3; ++i) raise(SIGUSR1);
  for (int i = 0; i < 3; ++i) raise(queued);
  leave_section();
  EXPECT_EQ(came, (std::vector{SIGUSR1, queued, queued, queued}));
}

TEST_F(DeferredSignals, KeepWhatCameWithThem) {
  handle(SIGUSR1, true);
  enter_section();
  queue(SIGUSR1, 4711);
  EXPECT_TRUE(came.empty());
  leave_section();
  EXPECT_EQ(came, std::vector{4711});
}

TEST_F(DeferredSignals, LeaveTheMaskAsItWas) {
  const std::uint64_t before = blocked();
  handle(SIGUSR1, true, bit(SIGUSR2));
  enter_section();
  queue(SIGUSR1, 1);
  leave_section();
  EXPECT_EQ(mask_there & (bit(SIGUSR1) | bit(SIGUSR2)), bit(SIGUSR1) | bit(SIGUSR2));
  EXPECT_EQ(blocked(), before);
}

// One that is given all keeps the others away meanwhile: none of them is lost.
TEST_F(DeferredSignals, ComeBehindOneThatIsGivenAll) {
  handle(SIGUSR1, true);
  handle(SIGUSR2, false);
  enter_section();
  queue(SIGUSR1, 1);
  raise(SIGUSR2);
  EXPECT_TRUE(came.empty());
  leave_section();
  ASSERT_EQ(came.size(), 2U);
  EXPECT_EQ(came[0] + came[1], 1 + SIGUSR2);
}

// The first waits while the kernel keeps the others.
TEST_F(DeferredSignals, OfOneNumberComeInOrder) {
  const int queued = SIGRTMIN + 1;
  handle(queued, true);
  for (int round = 0; round < 3; ++round) {
    came.clear();
    enter_section();
    for (const int value : {1, 1, 2, 3}) queue(queued, value);
    EXPECT_TRUE(came.empty());
    leave_section();
    EXPECT_EQ(came, (std::vector{1, 1, 2, 3}));
  }
}

TEST_F(DeferredSignals, OfSeveralNumbersAtOnceComeInTheOrderOfEach) {
  const int numbers[] = {SIGRTMIN + 1, SIGRTMIN + 2, SIGRTMIN + 3};
  std::uint64_t those = 0;
  for (const int number : numbers) {
    handle(number, true);
    those |= bit(number);
  }
  const std::uint64_t before = blocked();
  kernel(SYS_rt_sigprocmask, SIG_BLOCK, &those, nullptr, kKernelMaskSize);
  enter_section();
  for (int value = 1; value <= 3; ++value)
    for (const int number : numbers) queue(number, number * 10 + value);
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kKernelMaskSize);
  EXPECT_TRUE(came.empty());
  leave_section();
  EXPECT_EQ(came.size(), 9U);
  for (const int number : numbers) {
    std::vector<int> values;
    for (const int value : came)
      if (value / 10 == number) values.push_back(value % 10);
    EXPECT_EQ(values, (std::vector{1, 2, 3})) << number;
  }
}

// The kernel prepares both handlers before either runs, and the one that it has prepared first ends
// last.
class SeveralAtOnce : public DeferredSignals, public ::testing::WithParamInterface<unsigned> {};

TEST_P(SeveralAtOnce, AllWaitAndTheMaskIsAsItWas) {
  const int numbers[] = {SIGUSR1, SIGUSR2, SIGRTMIN + 1};
  std::uint64_t those = 0;
  for (unsigned i = 0; i < 3; ++i) {
    handle(numbers[i], (GetParam() >> i & 1) != 0);
    those |= bit(numbers[i]);
  }
  const std::uint64_t before = blocked();
  kernel(SYS_rt_sigprocmask, SIG_BLOCK, &those, nullptr, kKernelMaskSize);
  enter_section();
  for (const int number : numbers) queue(number, number);
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kKernelMaskSize);
  EXPECT_TRUE(came.empty()) << came[0];
  leave_section();
  EXPECT_EQ(blocked(), before);
  std::sort(came.begin(), came.end());
  EXPECT_EQ(came, std::vector(std::begin(numbers), std::end(numbers)));
  // Each comes once more.
  for (const int number : numbers) queue(number, number);
  EXPECT_EQ(came.size(), 6U);
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &before, nullptr, kKernelMaskSize);
}

// Of each bit, whether that handler is given all.
INSTANTIATE_TEST_SUITE_P(Of, SeveralAtOnce, ::testing::Range(0U, 8U));

// A child begins with no signal pending, and with the mask of its parent.
TEST_F(DeferredSignals, ThatWaitWhileTheirProcessForksAreNotTheChilds) {
  handle(SIGUSR1, false);
  handle(SIGUSR2, false);
  handle(SIGRTMIN + 1, true);
  const std::uint64_t before = blocked();
  for (const bool all : {false, true}) {
    came.clear();
    enter_section();
    raise(SIGUSR1);
    if (all) queue(SIGRTMIN + 1, 4711);
    const pid_t child = ::fork();
    if (child == 0) {
      // What comes to itself is its own.
      if (!all) raise(SIGUSR2);
      leave_section();
      const std::vector<int> own = all ? std::vector<int>{} : std::vector{SIGUSR2};
      ::_exit(came != own ? 1 : blocked() != before ? 2 : 0);
    }
    leave_section();
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << WEXITSTATUS(status);
    std::sort(came.begin(), came.end());
    EXPECT_EQ(came, all ? (std::vector{SIGUSR1, 4711}) : std::vector{SIGUSR1});
    EXPECT_EQ(blocked(), before);
  }
}

TEST_F(DeferredSignals, BehindAHandlerThatForksAreNotTheChilds) {
  static pid_t child;
  struct sigaction action {};
  action.sa_handler = [](int number) {
    if (interpose::before_handler(number)) child = ::fork();
  };
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  handle(SIGUSR2, false);
  const pid_t parent = ::getpid();
  enter_section();
  raise(SIGUSR1);
  raise(SIGUSR2);
  leave_section();
  if (::getpid() != parent) ::_exit(came.empty() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(came, std::vector{SIGUSR2});
}

}  // namespace
}  // namespace farcall::preload
