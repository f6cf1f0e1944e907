// SPDX-License-Identifier: Apache-2.0
//
// No call on a channel raises SIGPIPE, and none takes one that is not its own.
#include "channel/sigpipe.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "channel/conformance.hpp"

namespace farcall::channel::test {
namespace {

class Sigpipe : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Channel, Sigpipe, testing::ValuesIn(all_mechanisms()), test_name);

TEST_P(Sigpipe, DoesNotKillAWriterWithoutAReader) {
  Subprocess child([&] {
    ::signal(SIGPIPE, SIG_DFL);
    auto [reader, writer] = channel().take_both();
    reader.reset();
    const std::vector<std::byte> bytes(4096);
    const int error = error_of([&, &writer = writer] {
      for (int i = 0; i < 4096; ++i) writer->write(bytes);
    });
    require(error == EPIPE, "EPIPE");
    return 0;
  });
  EXPECT_EQ(child.wait().describe(), "exited with 0");
}

// A pipe that nobody reads.
UniqueFd broken_pipe() {
  int ends[2];
  require(::pipe2(ends, O_CLOEXEC) == 0, "a pipe");
  ::close(ends[0]);
  return UniqueFd(ends[1]);
}

bool is_pending() {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
}

bool is_blocked() {
  sigset_t blocked;
  return ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked) == 0 &&
         ::sigismember(&blocked, SIGPIPE) == 1;
}

TEST(PipeSignal, IsTakenBackWhereTheKernelHasNoFlagAgainstIt) {
  ::signal(SIGPIPE, SIG_DFL);
  const UniqueFd pipe = broken_pipe();
  const PipeSignal signal;
  errno = 0;
  EXPECT_EQ(signal.suppress([&] { return ::write(pipe.get(), "a", 1); }), -1);
  EXPECT_EQ(errno, EPIPE);
  EXPECT_FALSE(is_pending());
  EXPECT_FALSE(is_blocked());
}

TEST(PipeSignal, ThatWasPendingBeforeStaysPending) {
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t sigpipe;
  ::sigemptyset(&sigpipe);
  ::sigaddset(&sigpipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &sigpipe, nullptr);
  ::pthread_kill(::pthread_self(), SIGPIPE);
  const UniqueFd pipe = broken_pipe();
  const PipeSignal signal;
  EXPECT_EQ(signal.suppress([&] { return ::write(pipe.get(), "a", 1); }), -1);
  EXPECT_TRUE(is_pending());
  EXPECT_TRUE(is_blocked());
  const timespec now{};
  EXPECT_EQ(::sigtimedwait(&sigpipe, nullptr, &now), SIGPIPE);
  ::pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
}

TEST(PipeSignal, IsLeftAloneInAProcessThatIgnoresIt) {
  ::signal(SIGPIPE, SIG_IGN);
  const UniqueFd pipe = broken_pipe();
  const PipeSignal signal;
  EXPECT_EQ(signal.suppress([&] {
    EXPECT_FALSE(is_blocked());
    return ::write(pipe.get(), "a", 1);
  }),
            -1);
  ::signal(SIGPIPE, SIG_DFL);
}

}  // namespace
}  // namespace farcall::channel::test
