// SPDX-License-Identifier: Apache-2.0
//
// A peer that sleeps in the kernel is woken to take back what it is given, where nobody may borrow
// its socket to do so in its place. As those of leaving_test.cpp, and over packets.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "children.hpp"
#include "connected.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// One thread of the peer sends something whenever it is told to, and does nothing more; the other
// sleeps until it is sent the end.
Connected with_sleeper(const Steps& steps) {
  return with_child([&](int peer) {
    std::atomic<long> sleeper{0};
    const std::thread receiver([&] {
      sleeper = kernel(SYS_gettid);
      char byte = 0;
      require(::recv(peer, &byte, 1, 0) == 1 && byte == 'e', "receive the end");
      ::_exit(0);
    });
    while (sleeper == 0) ::usleep(1000);
    await_sleep(sleeper);
    for (;;) {
      steps.await();
      require(::send(peer, "unread", 6, MSG_NOSIGNAL) == 6, "send");
      steps.done();
    }
  });
}

// Who has slept in a call has what comes next in memory, if no others compete for the processor.
bool has_unread_in_memory(int fd, const Steps& steps) {
  for (int i = 0; i < 1000; ++i) {
    steps.tell();
    EXPECT_EQ(receive(fd), "unread");
    steps.await_done();
    steps.step();
    if (!readable_for_kernel(fd)) return true;
    if (!preloaded()) return false;
    EXPECT_EQ(receive(fd), "unread");
    ::usleep(5000);
  }
  return false;
}

void leave_a_sleeping_peer() {
  become_anybody();
  const Steps steps;
  const Connected connected = with_sleeper(steps);
  const bool in_memory = has_unread_in_memory(connected.fd.get(), steps);
  if (preloaded()) {
    EXPECT_TRUE(in_memory);
  }
  EXPECT_EQ(::system("true"), 0);
  EXPECT_EQ(receive(connected.fd.get()), "unread");
  EXPECT_EQ(send(connected.fd.get(), "e"), "1");
  EXPECT_EQ(connected.child->wait(), 0);
}

TEST(Doorbell, WakesAPeerThatSleepsWhileOthersLeave) {
  EXPECT_EQ(exit_status(in_child(leave_a_sleeping_peer)), 0);
}

}  // namespace
}  // namespace farcall::preload
