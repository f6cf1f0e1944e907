// SPDX-License-Identifier: Apache-2.0
//
// What is cleaned after pairs that were killed, and what is never touched.
#include "farcall/channel/clean.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "channel/conformance.hpp"
#include "channel/sysv_queue.hpp"
#include "farcall/channel/sysv_mq.hpp"

namespace farcall::channel::test {
namespace {

bool exists(int queue) {
  msqid_ds state{};
  return ::msgctl(queue, IPC_STAT, &state) == 0;
}

// Queues of System V are the machine's: what others clean meanwhile, or leave, is not these tests'.
// Users other than root have to be alone for that.
struct Clean : ::testing::Test {
  Clean() { (void)!::unshare(CLONE_NEWIPC); }
};

// A queue as it stays when both its ends are killed.
int make_leftover() {
  const sysv_queue::Name name = sysv_queue::reserve();
  return sysv_queue::open(name.key, 0);
}

TEST_F(Clean, RemovesAQueueThatNobodyHolds) {
  const int queue = make_leftover();
  std::vector<std::string> found;
  const auto note = [&](std::string_view what) { found.emplace_back(what); };
  EXPECT_GE(clean_leftovers(true, note), 1U);
  EXPECT_TRUE(exists(queue));
  ASSERT_FALSE(found.empty());
  EXPECT_TRUE(found.front().starts_with("System V message queue 0xfca"));
  EXPECT_GE(clean_leftovers(false), 1U);
  EXPECT_FALSE(exists(queue));
  EXPECT_EQ(clean_leftovers(false), 0U);
}

TEST_F(Clean, RemovesTheQueueOfAPairThatWasKilled) {
  clean_leftovers(false);
  {
    Subprocess child([] {
      auto [reader, writer] = Channel<SysvMq>().take_both();
      writer->write(bytes_of("a"));
      return ::raise(SIGKILL);
    });
    EXPECT_EQ(child.wait().signal, SIGKILL);
  }
  EXPECT_EQ(clean_leftovers(false), 1U);
}

TEST_F(Clean, LeavesAQueueThatSomebodyHolds) {
  Channel<SysvMq> channel;
  auto [child, reader] = spawn_writer(std::move(channel), [](Writer& out) {
    out.write(bytes_of("a"));
    clean_leftovers(false);
    return 0;
  });
  EXPECT_TRUE(child.wait().success());
  clean_leftovers(false);
  std::vector<std::byte> into(8);
  EXPECT_EQ(reader->read(into), 1U);
  EXPECT_EQ(reader->read(into), 0U);
}

TEST_F(Clean, LeavesQueuesThatAreNotOurs) {
  const sysv_queue::Name name = sysv_queue::reserve();
  // The same key, but not the mode that we give; and a queue without a key.
  const int foreign = ::msgget(name.key, IPC_CREAT | IPC_EXCL | 0600);
  const int without_key = ::msgget(IPC_PRIVATE, 0711);
  ASSERT_GE(foreign, 0);
  ASSERT_GE(without_key, 0);
  EXPECT_EQ(error_of([&] { sysv_queue::open(name.key, 0); }), EEXIST);
  {
    const sysv_queue::Name other = sysv_queue::reserve();
    EXPECT_NE(other.key, name.key);
  }
  clean_leftovers(false);
  EXPECT_TRUE(exists(foreign));
  EXPECT_TRUE(exists(without_key));
  sysv_queue::remove(foreign);
  sysv_queue::remove(without_key);
}

TEST_F(Clean, IsDoneByTheNextWhoMakesSuchAChannel) {
  const int queue = make_leftover();
  const Deadline deadline = Deadline::after(std::chrono::seconds(10));
  while (exists(queue) && monotonic_ns() < deadline.at()) {
    Channel<SysvMq> channel;
    ::usleep(100'000);
  }
  EXPECT_FALSE(exists(queue));
}

}  // namespace
}  // namespace farcall::channel::test
