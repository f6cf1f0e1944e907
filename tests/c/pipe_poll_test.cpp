// SPDX-License-Identifier: Apache-2.0
//
// Pipes among the descriptors of an event loop.
#include <signal.h>
#include <unistd.h>

#include "c/pipe.hpp"

namespace farcall::c::test {
namespace {

TEST(CPipePoll, WakesWhoHasNothingToReceive) {
  const Ends pipe;
  const int fd = farcall_pipe_poll_descriptor(pipe.one.get());
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 1);
    EXPECT_FALSE(readable(fd, 0));
    EXPECT_EQ(send(pipe.other, "now"), 0);
    EXPECT_TRUE(readable(fd, -1));
    farcall_pipe_poll_end(pipe.one.get());
    EXPECT_FALSE(readable(fd, 0));
    EXPECT_EQ(receive(pipe.one, 0), "now");
  }
  EXPECT_EQ(farcall_pipe_poll_descriptor(pipe.one.get()), fd);
}

TEST(CPipePoll, DoesNotWaitForWhatIsThere) {
  Ends pipe;
  EXPECT_EQ(send(pipe.other, "there"), 0);
  EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0);
  EXPECT_EQ(receive(pipe.one, 0), "there");
  EXPECT_EQ(farcall_pipe_finish(pipe.other.get()), 0);
  EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 0);
  EXPECT_EQ(receive(pipe.one, 0), "EPIPE");
}

TEST(CPipePoll, WakesWhoHasNoRoomToSend) {
  const Ends pipe(4096);
  int sent = 0;
  while (send(pipe.one, "full", 0) == 0) ++sent;
  ASSERT_EQ(farcall_pipe_send_poll_begin(pipe.one.get()), 1);
  const int fd = farcall_pipe_send_poll_descriptor(pipe.one.get());
  EXPECT_FALSE(readable(fd, 0));
  EXPECT_FALSE(readable(farcall_pipe_poll_descriptor(pipe.one.get()), 0));
  for (int i = 0; i < sent; ++i) ASSERT_EQ(receive(pipe.other, 0), "full");
  EXPECT_TRUE(readable(fd, -1));
  farcall_pipe_send_poll_end(pipe.one.get());
  EXPECT_EQ(send(pipe.one, "room", 0), 0);
}

TEST(CPipePoll, TellsOfAPeerThatHasGone) {
  for (const bool killed : {false, true}) {
    Ends pipe;
    Child child([&] {
      pipe.one.reset();
      EXPECT_EQ(receive(pipe.other), "go");
      if (killed) ::raise(SIGKILL);
      pipe.other.reset();
    });
    pipe.other.reset();
    ASSERT_EQ(farcall_pipe_poll_begin(pipe.one.get()), 1);
    EXPECT_EQ(send(pipe.one, "go"), 0);
    EXPECT_TRUE(readable(farcall_pipe_poll_descriptor(pipe.one.get()), -1));
    farcall_pipe_poll_end(pipe.one.get());
    EXPECT_EQ(receive(pipe.one), killed ? "ECONNRESET" : "EPIPE");
    child.join();
  }
}

}  // namespace
}  // namespace farcall::c::test
