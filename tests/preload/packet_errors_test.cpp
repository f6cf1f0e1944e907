// SPDX-License-Identifier: Apache-2.0
//
// Errors of unix sockets of packets. As they are and with the library preloaded.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "packets.hpp"
#include "preload/real.hpp"
#include "steps.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// Not even the kernel knows that it is none before it copies.
TEST(PacketErrors, AMessageThatASleeperHasNoPlaceForIsLostAlone) {
  const Packets both;
  void* const page = ::mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const timeval longest{.tv_sec = 10, .tv_usec = 0};
  for (const int fd : {both.a(), both.b()})
    ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest), 0);
  for (int i = 0; i < 3; ++i) {
    std::thread later([&, waits = kernel(SYS_gettid)] {
      await_sleep(waits);
      both.put("lost");
    });
    EXPECT_EQ(::recv(both.b(), page, 10, 0), -1);
    EXPECT_EQ(errno, EFAULT);
    later.join();
    both.talk(30);
  }
  ::munmap(page, 4096);
}

// The kernel tells of the reset where the library takes back what lies in memory.
TEST(PacketErrors, AResetIsToldOnceToWhoSends) {
  const Steps steps;
  Pair pair(false);
  const int fd = pair.client.get();
  const std::string block(500, 'x');
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    pair.client.reset();
    // It has to wait now and then, so that it is taken to do so again.
    for (int i = 0;; ++i) {
      if (i % 10 != 0) steps.await();
      if (receive(pair.server.get()) != block) ::_exit(1);
      if (send(pair.server.get(), "talk") != "4") ::_exit(1);
      steps.done();
    }
  }
  pair.server.reset();
  const auto is_in_memory = [&] {
    int in_kernel = 0;
    EXPECT_EQ(kernel(SYS_ioctl, fd, SIOCOUTQ, &in_kernel), 0);
    return in_kernel == 0;
  };
  int in_memory = 0;
  for (int i = 0; i < 1000 && (in_memory < 5 || i % 10 == 0); ++i) {
    if (i % 10 == 0) ::usleep(5000);
    ASSERT_EQ(send(fd, block), "500");
    in_memory = i % 10 != 0 && (is_in_memory() || !preloaded()) ? in_memory + 1 : 0;
    if (i % 10 != 0) steps.tell();
    steps.await_done();
    ASSERT_EQ(receive(fd), "talk");
  }
  EXPECT_EQ(send(fd, "unread"), "6");
  EXPECT_EQ(is_in_memory(), preloaded());
  ASSERT_EQ(kernel(SYS_sendto, fd, "unseen", 6, MSG_NOSIGNAL, nullptr, 0), 6);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  EXPECT_EQ(send(fd, ""), "(ECONNRESET)");
  EXPECT_EQ(receive(fd), "(end)");
  EXPECT_EQ(send(fd, ""), "(EPIPE)");
}

// In a child, and in its parent: both wait for each message in their sets.
void answer_questions(const Packets& both, int count) {
  for (int i = 0; i < count; ++i) {
    epoll_event event{};
    if (::epoll_wait(both.set_b.get(), &event, 1, 20'000) != 1) ::_exit(1);
    if (receive(both.b()) != "ask" || send(both.b(), "answer") != "6") ::_exit(2);
  }
}
void ask_questions(const Packets& both, int count) {
  for (int i = 0; i < count; ++i) {
    epoll_event event{};
    both.put("ask");
    ASSERT_EQ(::epoll_wait(both.set_a.get(), &event, 1, 20'000), 1);
    ASSERT_EQ(receive(both.a()), "answer");
  }
}

// Whoever was killed announces no end.
TEST(PacketErrors, AResetByOneWhoWasKilledIsToldBeforeItsLastMessages) {
  for (int round = 0; round < 3; ++round) {
    const Steps steps;
    Packets both(false);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      both.pair.client.reset();
      both.set_a.reset();
      answer_questions(both, 100);
      steps.await();
      for (const char* const last : {"last", "very"})
        if (send(both.b(), last) != "4") ::_exit(3);
      steps.done();
      steps.await();
    }
    both.pair.server.reset();
    both.set_b.reset();
    ask_questions(both, 100);
    both.put("unread");
    steps.step();
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
    EXPECT_EQ(receive(both.a()), "(ECONNRESET)");
    EXPECT_EQ(receive(both.a()), "last");
    EXPECT_EQ(receive(both.a()), "very");
    EXPECT_EQ(receive(both.a()), "(end)");
    EXPECT_EQ(send(both.a(), "x"), "(EPIPE)");
  }
}

// Each of its calls comes too soon after the one before to ask the kernel anew.
TEST(PacketErrors, TheEndOfOneWhoWasKilledIsToldBehindItsLastMessage) {
  for (int round = 0; round < 5; ++round) {
    const Steps steps;
    Packets both(false);
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      both.pair.client.reset();
      both.set_a.reset();
      answer_questions(both, 100);
      steps.await();
      if (send(both.b(), "last") != "4") ::_exit(3);
      steps.done();
      steps.await();
    }
    both.pair.server.reset();
    both.set_b.reset();
    ask_questions(both, 100);
    steps.step();
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
    char last[4];
    char more[4];
    const ssize_t got = ::recv(both.a(), last, sizeof last, MSG_DONTWAIT);
    const ssize_t behind = ::recv(both.a(), more, sizeof more, MSG_DONTWAIT);
    EXPECT_EQ(got, 4);
    EXPECT_EQ(behind, 0) << std::strerror(errno);
  }
}

}  // namespace
}  // namespace farcall::preload
