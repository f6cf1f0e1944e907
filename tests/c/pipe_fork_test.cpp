// SPDX-License-Identifier: Apache-2.0
//
// Whose an end is: before it is used anybody's, then its user's alone.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>

#include "c/pipe.hpp"

namespace farcall::c::test {
namespace {

TEST(CPipeFork, EitherSideMayUseWhatNobodyHasUsed) {
  for (const bool swapped : {false, true}) {
    Ends pipe;
    End& theirs = swapped ? pipe.one : pipe.other;
    End& ours = swapped ? pipe.other : pipe.one;
    Child child([&] {
      ours.reset();
      EXPECT_EQ(receive(theirs), "to the child");
      EXPECT_EQ(send(theirs, "to the parent"), 0);
    });
    theirs.reset();
    EXPECT_EQ(send(ours, "to the child"), 0);
    EXPECT_EQ(receive(ours), "to the parent");
    EXPECT_EQ(child.join(), 0);
  }
}

TEST(CPipeFork, OnlyTheFirstToUseAnEndHasIt) {
  for (const bool child_first : {true, false}) {
    Ends pipe;
    EXPECT_EQ(send(pipe.one, "to whoever it is"), 0);
    const Shared<Event> begin;
    const Shared<Event> used;
    const Shared<Event> over;
    Child child([&] {
      ASSERT_TRUE(begin->wait());
      EXPECT_EQ(receive(pipe.other), child_first ? "to whoever it is" : "EBUSY");
      EXPECT_EQ(send(pipe.other, "answer"), child_first ? 0 : -EBUSY);
      used->happens();
      EXPECT_TRUE(over->wait());
    });
    if (child_first) {
      begin->happens();
      ASSERT_TRUE(used->wait());
    }
    EXPECT_EQ(receive(pipe.other), child_first ? "EBUSY" : "to whoever it is");
    EXPECT_EQ(send(pipe.other, "answer"), child_first ? -EBUSY : 0);
    if (!child_first) begin->happens();
    over->happens();
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(receive(pipe.one), "answer");
  }
}

TEST(CPipeFork, AChildMayOnlyCloseWhatItsParentUses) {
  Ends pipe;
  EXPECT_EQ(send(pipe.one, "before"), 0);
  in_child([&] {
    EXPECT_EQ(send(pipe.one, "from the child"), -EBUSY);
    EXPECT_EQ(receive(pipe.one), "EBUSY");
    EXPECT_EQ(farcall_pipe_finish(pipe.one.get()), -EBUSY);
    EXPECT_EQ(farcall_pipe_poll_begin(pipe.one.get()), -EBUSY);
    farcall_pipe_poll_end(pipe.one.get());
    int descriptors[FARCALL_PIPE_DESCRIPTORS];
    EXPECT_EQ(farcall_pipe_descriptors(pipe.one.get(), descriptors), -EBUSY);
    pipe.one.reset();
    pipe.other.reset();
  });
  EXPECT_EQ(send(pipe.one, "after"), 0);
  EXPECT_EQ(receive(pipe.other), "before");
  EXPECT_EQ(receive(pipe.other), "after");
  EXPECT_EQ(receive(pipe.other, 0), "EAGAIN");
}

TEST(CPipeFork, NoChildHidesThatItsParentHasGone) {
  Ends pipe;
  const Shared<Event> started;
  const Shared<Event> over;
  const Shared<std::atomic<pid_t>> grandchild;
  Child user([&] {
    pipe.other.reset();
    EXPECT_EQ(send(pipe.one, "used"), 0);
    // It inherits all, knows of nothing, and outlives its parent.
    if (const pid_t pid = ::fork(); pid == 0) {
      (void)over->wait(20s);
      ::_exit(0);
    } else {
      *grandchild = pid;
    }
    started->happens();
    for (;;) ::pause();
  });
  pipe.one.reset();
  ASSERT_TRUE(started->wait());
  EXPECT_EQ(receive(pipe.other), "used");
  user.kill();
  EXPECT_EQ(receive(pipe.other), "ECONNRESET");
  EXPECT_EQ(::kill(*grandchild, 0), 0) << "it was there all the time";
  over->happens();
}

// The parent does not know whether the child, which has it too, is about to use it.
TEST(CPipeFork, WhatAForkHasSharedIsClosedForOneSideAlone) {
  Ends pipe;
  const Shared<Event> closed;
  Child child([&] {
    pipe.other.reset();
    EXPECT_TRUE(closed->wait());
    EXPECT_EQ(send(pipe.one, "still here"), 0);
  });
  pipe.one.reset();
  closed->happens();
  EXPECT_EQ(receive(pipe.other), "still here");
  EXPECT_EQ(receive(pipe.other), "ECONNRESET") << "the child has not closed it";
  EXPECT_EQ(child.join(), 0);
}

TEST(CPipeFork, TheLastOneWhoClosesWhatNobodyUsedIsNoticed) {
  Ends pipe;
  Child child([&] { pipe.one.reset(); });
  pipe.one.reset();
  EXPECT_EQ(receive(pipe.other), "ECONNRESET");
  EXPECT_EQ(child.join(), 0);
}

// Either side may be done with sending before anybody has used the end: the other one keeps it.
TEST(CPipeFork, WhoIsDoneWithSendingDoesNotTakeWhatNobodyHasUsed) {
  for (const bool child_is_done : {true, false}) {
    Ends pipe;
    const Shared<Event> done;
    const auto leave_or_use = [&](bool leave) {
      if (leave) {
        farcall_pipe_close_sending(pipe.one.get());
        done->happens();
      } else {
        ASSERT_TRUE(done->wait());
        EXPECT_EQ(send(pipe.one, "still here"), 0);
      }
    };
    Child child([&] {
      pipe.other.reset();
      leave_or_use(child_is_done);
    });
    leave_or_use(!child_is_done);
    EXPECT_EQ(receive(pipe.other), "still here");
    EXPECT_EQ(child.join(), 0);
  }
}

TEST(CPipeFork, ThatNothingFollowsIsToldWithTheFirstUse) {
  Ends pipe;
  in_child([] {});
  EXPECT_EQ(send(pipe.other, "a question"), 0);
  farcall_pipe_close_sending(pipe.one.get());
  EXPECT_EQ(receive(pipe.other, 0), "EAGAIN");
  EXPECT_EQ(receive(pipe.one), "a question");
  EXPECT_EQ(receive(pipe.other), "EPIPE");
  EXPECT_EQ(send(pipe.one, "more"), -EPIPE);
}

TEST(CPipeFork, AKilledPeerIsNoticed) {
  for (const int wait : {FARCALL_WAIT_ADAPTIVE, FARCALL_WAIT_SPIN, FARCALL_WAIT_BLOCK}) {
    Ends pipe(4096, wait);
    Child child([&] {
      pipe.one.reset();
      EXPECT_EQ(send(pipe.other, "alive"), 0);
      for (;;) ::pause();
    });
    pipe.other.reset();
    EXPECT_EQ(receive(pipe.one), "alive");
    ::kill(child.pid(), SIGKILL);
    EXPECT_EQ(receive(pipe.one), "ECONNRESET");
    int result = 0;
    for (int i = 0; i < 1'000 && result == 0; ++i) result = send(pipe.one, "to nobody");
    EXPECT_EQ(result, -EPIPE);
  }
}

// Programs that have closed their standard streams write to them all the same.
void adopt_in_place_of_standard_streams(bool backwards) {
  in_child([backwards] {
    for (const int fd : {0, 1, 2}) ::close(fd);
    Ends pipe;
    int given[FARCALL_PIPE_DESCRIPTORS];
    ASSERT_EQ(farcall_pipe_descriptors(pipe.other.get(), given), 0);
    for (const int fd : given) EXPECT_GT(fd, 2);
    if (backwards) std::ranges::reverse(given);
    for (int& fd : given) fd = ::dup(fd);
    EXPECT_EQ(given[0], 0);
    if (backwards) std::ranges::reverse(given);
    farcall_pipe* adopted = nullptr;
    ASSERT_EQ(farcall_pipe_adopt(given, nullptr, &adopted), 0);
    const End other(adopted);
    EXPECT_GT(farcall_pipe_poll_descriptor(adopted), 2);
    EXPECT_GT(farcall_pipe_send_poll_descriptor(adopted), 2);
    EXPECT_EQ(send(pipe.one, "unharmed"), 0);
    EXPECT_EQ(receive(other), "unharmed");
    for (const int fd : {0, 1, 2}) EXPECT_EQ(::fcntl(fd, F_GETFD), -1) << "nothing is left there";
  });
}

TEST(CPipeFork, StandardStreamsMayBeClosed) { adopt_in_place_of_standard_streams(false); }
TEST(CPipeFork, NeitherSocketStaysInPlaceOfAStandardStream) {
  adopt_in_place_of_standard_streams(true);
}

TEST(CPipeFork, OnePipeMayConnectTwoChildren) {
  Ends pipe;
  Child first([&] {
    pipe.other.reset();
    EXPECT_EQ(send(pipe.one, "from the first"), 0);
    pipe.one.reset();
  });
  pipe.one.reset();
  Child second([&] {
    EXPECT_EQ(receive(pipe.other), "from the first");
    EXPECT_EQ(receive(pipe.other), "EPIPE");
  });
  pipe.other.reset();
  EXPECT_EQ(first.join(), 0);
  EXPECT_EQ(second.join(), 0);
}

}  // namespace
}  // namespace farcall::c::test
