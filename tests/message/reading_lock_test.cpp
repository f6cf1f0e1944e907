// SPDX-License-Identifier: Apache-2.0
#include "message/reading_lock.hpp"

#include <sys/prctl.h>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

// The handler runs while its thread waits for who writes: it reads in the child as well as in the
// parent, and has said before in which of them it is to.
TEST(ReadingLock, AChildOfAHandlerThatHasInterruptedAReaderWritesWhenThatHasRead) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  static std::atomic<pid_t> child;
  in_child([] {
    struct sigaction action {};
    action.sa_handler = [](int) {
      const pid_t forked = ::fork();
      if (forked == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      child = forked;
    };
    ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
    child = -1;
    ReadingLock lock;
    std::atomic<bool> written{false};
    const std::atomic<pid_t> id{own_id()};
    std::thread writer([&, reader = ::pthread_self()] {
      const Writing guard(lock);
      written = true;
      EXPECT_TRUE(sleeps(id));
      EXPECT_EQ(::pthread_kill(reader, SIGUSR1), 0);
      EXPECT_TRUE(eventually([] { return child > 0; }));
    });
    while (!written) continue;
    { const Reading guard(lock); }
    if (child == 0) {
      { const Writing guard(lock); }
      ::_exit(0);
    }
    writer.join();
    int status = -1;
    EXPECT_TRUE(eventually([&] { return ::waitpid(child, &status, WNOHANG) == child; }));
    EXPECT_EQ(status, 0);
  });
}

}  // namespace
}  // namespace farcall::message::test
