// SPDX-License-Identifier: Apache-2.0
//
// Entries: what their owner does with them.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/observe.hpp"
#include "watch/ends.hpp"
#include "watch/lease.hpp"

namespace farcall::test {
namespace {

using observe::Carrier;
using observe::Entry;
using observe::Kind;
using observe::Role;

observe::Description described(const char* name) {
  observe::Description end{.kind = Kind::ring, .role = Role::client};
  end.name = name;
  end.name_bytes = std::strlen(name);
  return end;
}

TEST(ObserveTable, AnEntryIsSeenAsLongAsItIsOpen) {
  {
    const Entry entry(described("here"));
    ASSERT_NE(entry.get(), nullptr);
    observe::note_sent(entry.sent(), nullptr, 7);
    observe::note_sent(entry.sent(), nullptr, 5, 0);
    observe::note_received_by_kernel(entry.received(), nullptr, 3);
    const auto ends = own_ends(Kind::ring, Role::client);
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0].name, "here");
    EXPECT_EQ(ends[0].counters.sent.messages, 1U);
    EXPECT_EQ(ends[0].counters.sent.bytes, 12U);
    EXPECT_EQ(ends[0].counters.received.kernel_messages, 1U);
    EXPECT_EQ(ends[0].counters.received.kernel_bytes, 3U);
    EXPECT_FALSE(ends[0].inherited);
  }
  EXPECT_TRUE(own_ends(Kind::ring, Role::client).empty());
}

watch::Closed closed_by(pid_t pid, Kind kind) {
  watch::Process process;
  const watch::Seen seen = watch::look(pid, process);  // there is no table before the first entry
  EXPECT_TRUE(seen == watch::Seen::yes || seen == watch::Seen::no_tables) << static_cast<int>(seen);
  for (const watch::Closed& closed : process.closed)
    if (closed.kind == kind) return closed;
  return {};
}

TEST(ObserveTable, WhatHasPassedStaysKnownWhenItIsClosed) {
  const watch::Closed before = closed_by(::getpid(), Kind::tcp);
  for (int i = 0; i < 600; ++i) {  // of several tables
    observe::Description end = described("closed");
    end.kind = Kind::tcp;
    const Entry entry(end);
    const Entry other(end);
    observe::note_sent(entry.sent(), nullptr, 7);
    observe::note_sent_by_kernel(other.sent(), nullptr, 11);
    observe::note_received(other.received(), nullptr, 13);
  }
  const watch::Closed after = closed_by(::getpid(), Kind::tcp);
  EXPECT_EQ(after.ends - before.ends, 1200U);
  EXPECT_EQ(after.sent.messages - before.sent.messages, 600U);
  EXPECT_EQ(after.sent.bytes - before.sent.bytes, 4200U);
  EXPECT_EQ(after.sent.kernel_messages - before.sent.kernel_messages, 600U);
  EXPECT_EQ(after.sent.kernel_bytes - before.sent.kernel_bytes, 6600U);
  EXPECT_EQ(after.received.messages - before.received.messages, 600U);
  EXPECT_EQ(after.received.bytes - before.received.bytes, 7800U);
  EXPECT_EQ(after.received.kernel_messages, before.received.kernel_messages);
}

TEST(ObserveTable, AChildHasClosedOnlyWhatItHasUsed) {
  Entry used(described("used"));
  Entry unused(described("unused"));
  observe::note_sent(used.sent(), nullptr, 1);
  observe::note_sent(unused.sent(), nullptr, 1);
  const Gate closed;
  const Gate seen;
  const Child child([&] {
    observe::note_sent(used.sent(), nullptr, 5);
    used = Entry();
    unused = Entry();
    const Entry own(described("own"));
    closed.open();
    seen.wait();
    return 0;
  });
  closed.wait();
  const watch::Closed sums = closed_by(child.pid(), Kind::ring);
  EXPECT_EQ(sums.ends, 1U);
  EXPECT_EQ(sums.sent.messages, 1U);
  EXPECT_EQ(sums.sent.bytes, 5U);
  seen.open();
}

TEST(ObserveTable, AnEntryThatIsUsedAgainBeginsAnew) {
  std::uint32_t generation = 0;
  for (int i = 0; i < 3; ++i) {
    const Entry entry(described("again"));
    observe::note_sent(entry.sent(), nullptr, 1);
    const auto ends = own_ends(Kind::ring, Role::client);
    ASSERT_EQ(ends.size(), 1U);
    EXPECT_EQ(ends[0].counters.sent.messages, 1U);
    EXPECT_NE(ends[0].generation, generation);
    generation = ends[0].generation;
  }
}

TEST(ObserveTable, ThereIsRoomForMoreThanATableHas) {
  std::vector<Entry> entries;
  std::set<observe::Counters*> places;
  for (int i = 0; i < 1000; ++i) {
    entries.emplace_back(described("many"));
    places.insert(entries.back().get());
  }
  EXPECT_EQ(places.size(), 1000U);
  EXPECT_EQ(places.count(nullptr), 0U);
  EXPECT_EQ(own_ends(Kind::ring, Role::client).size(), 1000U);
}

TEST(ObserveTable, ThreadsGetEntriesOfTheirOwn) {
  constexpr int kThreads = 8;
  constexpr int kEach = 200;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        const Entry entry(described("mine"));
        observe::note_sent(entry.sent(), nullptr, static_cast<std::size_t>(t));
        if (entry.get() == nullptr || entry.get()->sent.messages != 1 ||
            entry.get()->sent.bytes != static_cast<std::uint64_t>(t))
          ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(own_ends(Kind::ring, Role::client).empty());
}

TEST(ObserveTable, LeavesErrnoAlone) {
  errno = ELOOP;
  const Entry entry(described("errno"));
  EXPECT_EQ(observe::inode_of(-1), 0U);
  EXPECT_EQ(errno, ELOOP);
}

TEST(ObserveTable, ClassesOfTimesAreInOrderAndFit) {
  std::size_t before = 0;
  for (std::uint64_t ns = 1; ns < std::uint64_t{1} << 40; ns += ns / 16 + 1) {
    const std::size_t index = observe::class_of(ns);
    ASSERT_LT(index, observe::Times::kClasses);
    ASSERT_GE(index, before);
    if (ns >= 64 && index + 1 < observe::Times::kClasses) {
      ASSERT_GE(ns, observe::least_of(index));
      ASSERT_LT(ns, observe::least_of(index + 1));
    }
    before = index;
  }
  EXPECT_EQ(observe::class_of(UINT64_MAX), observe::Times::kClasses - 1);
}

// Answers are timed as long as somebody has asked for it, and no longer.
TEST(ObserveTable, ALeaseEndsByItself) {
  const Entry entry(described("timed"));
  const auto answer = [&] {
    observe::note_sent(entry.sent(), nullptr, 1);
    observe::note_received(entry.received(), nullptr, 1);
  };
  answer();
  EXPECT_EQ(observe::times_of(*entry.get()).count, 0U);
  watch::Process self;
  ASSERT_EQ(watch::look(::getpid(), self), watch::Seen::yes);
  ASSERT_EQ(self.ends.size(), 1U);
  const std::vector<watch::Lease> lease{
      {.word = watch::Lease::Word::watch, .end = &self.ends[0], .sampling = 0}};
  ASSERT_EQ(watch::renew(self, lease, std::chrono::seconds(10)), 1U);
  answer();
  answer();
  EXPECT_EQ(observe::times_of(*entry.get()).count, 2U);
  observe::Times times;
  ASSERT_TRUE(watch::read_times(self, self.ends[0], times));
  EXPECT_EQ(times.count, 2U);
  ASSERT_EQ(watch::renew(self, lease, std::chrono::nanoseconds(16)), 1U);
  answer();
  answer();
  EXPECT_EQ(observe::times_of(*entry.get()).count, 2U);
  EXPECT_EQ(entry.get()->sent.watch, 0U);
  // Somebody's mistake, or of another time namespace.
  ASSERT_EQ(watch::renew(self, lease, std::chrono::hours(1)), 1U);
  answer();
  EXPECT_EQ(observe::times_of(*entry.get()).count, 2U);
  EXPECT_EQ(entry.get()->sent.watch, 0U);
}

TEST(ObserveTable, OneOfManyMessagesIsTimed) {
  const Entry entry(described("sampled"));
  watch::Process self;
  ASSERT_EQ(watch::look(::getpid(), self), watch::Seen::yes);
  ASSERT_EQ(self.ends.size(), 1U);
  ASSERT_EQ(
      watch::renew(self, {{.word = watch::Lease::Word::watch, .end = &self.ends[0], .sampling = 5}},
                   std::chrono::seconds(10)),
      1U);
  for (int i = 0; i < 320; ++i) {
    observe::note_sent(entry.sent(), nullptr, 1);
    observe::note_received(entry.received(), nullptr, 1);
  }
  EXPECT_EQ(observe::times_of(*entry.get()).count, 10U);
}

// The process may have unmapped it, or executed another program.
TEST(ObserveTable, WhatStandsWhereATableWasIsNotWrittenTo) {
  const Entry entry(described("gone"));
  watch::Process self;
  ASSERT_EQ(watch::look(::getpid(), self), watch::Seen::yes);
  ASSERT_EQ(self.ends.size(), 1U);
  const std::vector<std::uint64_t> other(sizeof(observe::Table) / sizeof(std::uint64_t));
  watch::End gone = self.ends[0];
  gone.table = reinterpret_cast<std::uint64_t>(other.data());
  using Word = watch::Lease::Word;
  const std::vector<watch::Lease> leases{{.word = Word::tap_new, .end = &gone},
                                         {.word = Word::watch, .end = &self.ends[0]},
                                         {.word = Word::tap_children, .end = &gone}};
  EXPECT_EQ(watch::renew(self, leases, std::chrono::seconds(10)), 1U);
  EXPECT_NE(entry.get()->sent.watch, 0U);
  EXPECT_EQ(std::ranges::count(other, 0U), std::ssize(other));
}

// An idle machine would look the same.
TEST(Everybody, AreNotToldWithoutADescriptor) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer and its companions need descriptors to look at memory";
#endif
  for (const rlim_t left : {0U, 1U}) {
    Child child([left] {
      const int next = ::dup(STDIN_FILENO);
      ::close(next);
      rlimit limit{};
      ::getrlimit(RLIMIT_NOFILE, &limit);
      limit.rlim_cur = static_cast<rlim_t>(next) + left;
      if (next < 0 || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 2;
      try {
        return watch::Everybody().look().empty() ? 3 : 4;
      } catch (const SystemError& error) {
        return error.code().value() == EMFILE ? 0 : 5;
      }
    });
    EXPECT_EQ(child.wait(), 0) << left;
  }
}

TEST(Everybody, AreNotToldWithoutProc) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to mount";
  Child child([] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/proc", "tmpfs", 0, nullptr) != 0)
      return 2;
    try {
      return watch::Everybody().look().empty() ? 3 : 4;
    } catch (const SystemError& error) {
      return error.code().value() == ENOENT ? 0 : 5;
    }
  });
  const int status = child.wait();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) GTEST_SKIP() << "this system permits no namespaces";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace farcall::test
