// SPDX-License-Identifier: Apache-2.0
//
// Children: what they are given they go on with, and count for themselves.
#include <sys/syscall.h>

#include <cstring>

#include "farcall/observe.hpp"
#include "watch/ends.hpp"

namespace farcall::test {
namespace {

using observe::Entry;
using observe::Kind;
using observe::Role;

observe::Description described(Kind kind) { return {.kind = kind, .role = Role::client}; }

TEST(WatchFork, AChildThatUsesNothingShowsNothing) {
  const Entry entry(described(Kind::ring));
  observe::note_sent(entry.sent(), nullptr, 10);
  Gate done;
  const Child child([&] {
    done.wait();
    return 0;
  });
  EXPECT_TRUE(ends_of(child.pid()).empty());
  EXPECT_EQ(own_ends(Kind::ring, Role::client).size(), 1U);
  done.open();
}

TEST(WatchFork, AChildCountsFromZero) {
  const Entry entry(described(Kind::ring));
  const Entry session(described(Kind::door));
  observe::note_sent(entry.sent(), nullptr, 10);
  Gate used;
  Gate looked;
  Gate opened;
  Gate done;
  const Child child([&] {
    observe::note_sent(entry.sent(), nullptr, 3);
    observe::note_sent(session.sent(), nullptr, 3);  // which is its parent's
    used.open();
    looked.wait();
    const Entry own(described(Kind::ring));
    observe::note_sent(own.sent(), nullptr, 4);
    opened.open();
    done.wait();
    return 0;
  });
  used.wait();
  auto ends = ends_of(child.pid());
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_TRUE(ends[0].inherited);
  EXPECT_EQ(ends[0].counters.sent.messages, 1U);
  EXPECT_EQ(ends[0].counters.sent.bytes, 3U);
  looked.open();
  opened.wait();
  ends = ends_of(child.pid());
  ASSERT_EQ(ends.size(), 2U);
  EXPECT_TRUE(ends[0].inherited);
  EXPECT_FALSE(ends[1].inherited);
  EXPECT_EQ(ends[1].counters.sent.bytes, 4U);
  done.open();
  const auto own = own_ends(Kind::ring, Role::client);
  ASSERT_EQ(own.size(), 1U);
  EXPECT_EQ(own[0].counters.sent.bytes, 10U);
}

// No handler of pthread_atfork() runs for it.
TEST(WatchFork, ABareChildCountsFromZero) {
  const Entry entry(described(Kind::ring));
  observe::note_sent(entry.sent(), nullptr, 10);
  Gate used;
  Gate done;
  const auto pid = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, 0));
  if (pid == 0) {
    observe::note_sent(entry.sent(), nullptr, 2);
    used.open();
    done.wait();
    ::_exit(0);
  }
  used.wait();
  const auto ends = ends_of(pid);
  ASSERT_EQ(ends.size(), 1U);
  EXPECT_EQ(ends[0].counters.sent.bytes, 2U);
  done.open();
  int status = -1;
  ::waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(WatchFork, AChildThatExecutesAnotherProgramShowsNothing) {
  const Entry entry(described(Kind::ring));
  Gate done;
  const Child child([&] {
    ::execlp("sleep", "sleep", "60", nullptr);
    return 127;
  });
  watch::Process process;
  for (int i = 0; i < 10'000; ++i) {
    if (watch::look(child.pid(), process) == watch::Seen::no_tables && process.command == "sleep")
      break;
    ::usleep(1000);
  }
  EXPECT_EQ(process.command, "sleep");
  EXPECT_TRUE(process.ends.empty());
}

// Whoever dies while it is looked at is no error, at whatever moment.
TEST(WatchFork, AProcessMayDieWhileItIsRead) {
  for (int round = 0; round < 50; ++round) {
    Gate ready;
    const Child child([&] {
      const Entry entry(described(Kind::ring));
      ready.open();
      for (;;) observe::note_sent(entry.sent(), nullptr, 1);
      return 0;
    });
    ready.wait();
    watch::Process process;
    ASSERT_EQ(watch::look(child.pid(), process), watch::Seen::yes);
    ASSERT_EQ(process.ends.size(), 1U);
    const Child killer([&] {
      ::usleep(static_cast<useconds_t>(round * 20));
      ::kill(child.pid(), SIGKILL);
      return 0;
    });
    watch::Seen seen = watch::Seen::yes;
    for (int i = 0; i < 100'000 && seen == watch::Seen::yes && !process.ends.empty(); ++i) {
      seen = watch::look(child.pid(), process);
      observe::Times times;
      if (!process.ends.empty()) (void)watch::read_times(process, process.ends[0], times);
    }
    EXPECT_NE(seen, watch::Seen::forbidden);
  }
}

}  // namespace
}  // namespace farcall::test
