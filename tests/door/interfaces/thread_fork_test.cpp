// SPDX-License-Identifier: Apache-2.0
//
// What a forked child finds of <thread.h>, whatever its parent's threads were doing with it.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <thread.h>
#include <unistd.h>

#include "harness/child.hpp"
#include "harness/interrupted.hpp"

namespace farcall::test {
namespace {

void* nothing(void* argument) { return argument; }

TEST(Threads, AHandlerMayForkWhateverItsThreadIsDoingWithThem) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    interrupted(1000, fork_and_wait, [] {
      EXPECT_EQ(thr_continue(thr_self()), ESRCH);
      EXPECT_EQ(thr_suspend(thr_self()), ESRCH);
    });
  });
}

// Makes threads and joins whichever ends.
void join_three() {
  for (int i = 0; i < 3; ++i) {
    thread_t thread = 0;
    ASSERT_EQ(thr_create(nullptr, 0, &nothing, nullptr, 0, &thread), 0);
    thread_t departed = 0;
    ASSERT_EQ(thr_join(0, &departed, nullptr), 0);
    EXPECT_EQ(departed, thread);
  }
}

TEST(Threads, AChildJoinsItsOwnWhileAThreadOfItsParentsWaits) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    const auto fork_and_join = [](void*) -> void* {
      EXPECT_TRUE(others_come_to_rest());
      in_child(join_three);
      return nullptr;
    };
    ASSERT_EQ(thr_create(nullptr, 0, fork_and_join, nullptr, 0, nullptr), 0);
    EXPECT_EQ(thr_join(0, nullptr, nullptr), 0);
  });
}

TEST(Threads, AChildOfAHandlerWaitsForNoneOfItsParents) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  static pid_t child;
  in_child([] {
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) {
      child = ::fork();
      if (child == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    };
    ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
    const auto interrupt = [](void* main) -> void* {
      EXPECT_TRUE(others_come_to_rest());
      EXPECT_EQ(thr_kill(*static_cast<thread_t*>(main), SIGUSR1), 0);
      // Its own end ends the parent's wait.
      int status = -1;
      EXPECT_TRUE(eventually([&] { return ::waitpid(child, &status, WNOHANG) > 0; }));
      EXPECT_EQ(status, 0);
      return nullptr;
    };
    thread_t self = thr_self();
    ASSERT_EQ(thr_create(nullptr, 0, interrupt, &self, 0, nullptr), 0);
    const int error = thr_join(0, nullptr, nullptr);
    if (child == 0) {
      EXPECT_EQ(error, ESRCH);
      join_three();
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_EQ(error, 0);
  });
}

}  // namespace
}  // namespace farcall::test
