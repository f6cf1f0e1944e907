// SPDX-License-Identifier: Apache-2.0
//
// Errors of unix sockets of packets. As they are and with the library preloaded.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
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
    const UniqueFd set = set_with(pair.server.get());
    for (int i = 0; i < 60; ++i) {
      epoll_event event{};
      if (::epoll_wait(set.get(), &event, 1, 20'000) != 1) ::_exit(1);
      if (receive(pair.server.get()) != block) ::_exit(1);
      if (send(pair.server.get(), "talk") != "4") ::_exit(1);
    }
    steps.done();
    steps.await();
  }
  pair.server.reset();
  for (int i = 0; i < 60; ++i) {
    ASSERT_EQ(send(fd, block), "500");
    ASSERT_EQ(receive(fd), "talk");
  }
  steps.await_done();
  EXPECT_EQ(send(fd, "unread"), "6");
  int in_kernel = 0;
  ASSERT_EQ(kernel(SYS_ioctl, fd, SIOCOUTQ, &in_kernel), 0);
  EXPECT_EQ(in_kernel == 0, preloaded());
  ASSERT_EQ(kernel(SYS_sendto, fd, "unseen", 6, MSG_NOSIGNAL, nullptr, 0), 6);
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  EXPECT_EQ(send(fd, ""), "(ECONNRESET)");
  EXPECT_EQ(receive(fd), "(end)");
  EXPECT_EQ(send(fd, ""), "(EPIPE)");
}

}  // namespace
}  // namespace farcall::preload
