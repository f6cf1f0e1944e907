// SPDX-License-Identifier: Apache-2.0
//
// What UDP sockets over loopback do, whoever carries the datagrams; as contract_test.cpp does for
// TCP, these run as they are and with the library preloaded.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "children.hpp"
#include "datagrams.hpp"
#include "harness/ancillary_message.hpp"

namespace farcall::preload {
namespace {

TEST(Datagrams, StayAwakeForWhoPolls) {
  const Two two;
  const int fd = two.far.fd.get();
  for (int i = 0; i < 40; ++i) {
    two.near.send("x");
    EXPECT_EQ(poll_once(fd, 1000), POLLIN);
    EXPECT_EQ(two.far.receive(), "x");
  }
  two.near.send("x");
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(fd));
  }
  EXPECT_EQ(poll_once(fd), POLLIN);
  EXPECT_EQ(two.far.receive(), "x");
  EXPECT_EQ(poll_once(fd), 0);
}

TEST(Datagrams, WakeWhoPolls) {
  const Two two;
  std::thread later = in_a_moment(two.near, "x");
  EXPECT_EQ(poll_once(two.far.fd.get(), 20'000), POLLIN);
  EXPECT_EQ(two.far.receive(), "x");
  later.join();
  EXPECT_EQ(poll_once(two.far.fd.get(), 20), 0);
}

TEST(Datagrams, WakeWhoSelects) {
  const Two two;
  const int fd = two.far.fd.get();
  for (int i = 0; i < 3; ++i) {
    std::thread later = in_a_moment(two.near, "x");
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    timeval limit{.tv_sec = 20, .tv_usec = 0};
    EXPECT_EQ(::select(fd + 1, &read, nullptr, nullptr, &limit), 1);
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "x");
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
    later.join();
  }
}

TEST(Datagrams, OfTwoSocketsAreFoundInTurn) {
  const Two one;
  const Two other;
  pollfd wait[2] = {{.fd = one.far.fd.get(), .events = POLLIN, .revents = 0},
                    {.fd = other.far.fd.get(), .events = POLLIN, .revents = 0}};
  for (int i = 0; i < 100; ++i) {
    const Two& now = i % 2 == 0 ? one : other;
    now.near.send("x");
    EXPECT_EQ(::poll(wait, 2, 1000), 1);
    EXPECT_EQ(wait[i % 2].revents, POLLIN);
    EXPECT_EQ(now.far.receive(), "x");
  }
}

TEST(Datagrams, LevelsAreReportedUntilRead) {
  const Two two;
  const int fd = two.far.fd.get();
  const Set set(fd, EPOLLIN);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(set.wait(), -1);
    two.near.send("x");
    two.near.send("y");
    EXPECT_EQ(set.wait(1000), fd);
    EXPECT_EQ(two.far.receive(), "x");
    EXPECT_EQ(set.wait(1000), fd);
    EXPECT_EQ(two.far.receive(), "y");
  }
  two.near.send("x");
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(fd));
  }
  EXPECT_EQ(set.wait(1000), fd);
}

TEST(Datagrams, EdgesAreReportedOnce) {
  const Two two;
  const int fd = two.far.fd.get();
  const Set set(fd, EPOLLIN | EPOLLET);
  (void)set.wait();
  for (int i = 0; i < 40; ++i) {
    two.near.send("x");
    EXPECT_EQ(set.wait(1000), fd);
    EXPECT_EQ(set.wait(), -1);
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "x");
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Datagrams, OneShotIsReportedOnceUntilArmedAgain) {
  const Two two;
  const int fd = two.far.fd.get();
  const Set set(fd, EPOLLIN | EPOLLONESHOT);
  for (int i = 0; i < 5; ++i) {
    two.near.send("x");
    EXPECT_EQ(set.wait(1000), fd);
    two.near.send("y");
    EXPECT_EQ(set.wait(), -1);
    EXPECT_EQ(two.far.receive(), "x");
    set.change(fd, EPOLLIN | EPOLLONESHOT);
    EXPECT_EQ(set.wait(1000), fd);
    EXPECT_EQ(two.far.receive(), "y");
    set.change(fd, EPOLLIN | EPOLLONESHOT);
  }
}

TEST(Datagrams, WakeWhoSleepsInASet) {
  const Two two;
  const int fd = two.far.fd.get();
  const Set set(fd, EPOLLIN);
  for (int i = 0; i < 40; ++i) {
    two.near.send("x");
    EXPECT_EQ(set.wait(1000), fd);
    EXPECT_EQ(two.far.receive(), "x");
  }
  std::thread later = in_a_moment(two.near, "x");
  EXPECT_EQ(set.wait(20'000), fd);
  EXPECT_EQ(two.far.receive(), "x");
  later.join();
}

// One that comes by memory and one that comes by the kernel, of which an edge tells only once.
TEST(Datagrams, OfASenderWithoutMemoryAreNotForgotten) {
  const Socket server;
  const Socket client;
  client.connect_to(server);
  const int fd = server.fd.get();
  const Set set(fd, EPOLLIN | EPOLLET);
  const auto drain = [&] {
    int count = 0;
    while (server.receive(MSG_DONTWAIT) != "(EAGAIN)") ++count;
    return count;
  };
  for (int i = 0; i < 400; ++i) {
    client.send("x");
    const Socket stranger;
    if (i % 7 == 0) {
      stranger.connect_to(server);
      stranger.send("y");
    }
    for (int left = i % 7 == 0 ? 2 : 1; left != 0;) {
      ASSERT_EQ(set.wait(2000), fd) << i;
      left -= drain();
    }
  }
}

TEST(Datagrams, ASetOfTwoDescriptorsOfOneSocketHearsOfBoth) {
  const Two two;
  const UniqueFd copy(::dup(two.far.fd.get()));
  const Set set(two.far.fd.get(), EPOLLIN);
  set.add(copy.get(), EPOLLIN);
  for (int i = 0; i < 10; ++i) {
    std::thread later = in_a_moment(two.near, "x");
    EXPECT_NE(set.wait(20'000), -1);
    char byte = 0;
    EXPECT_EQ(::recv(copy.get(), &byte, 1, 0), 1);
    later.join();
  }
}

// As the receiver of a pair of version 6 is told it.
sockaddr_in6 sender_of_a_byte(const Two& two) {
  two.near.send("x");
  sockaddr_in6 from{};
  socklen_t size = sizeof from;
  char byte = 0;
  EXPECT_EQ(::recvfrom(two.far.fd.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), &size),
            1);
  EXPECT_EQ(size, sizeof from);
  return from;
}

TEST(Datagrams, ASetTellsOfASocketWhoseOtherDescriptorIsLeft) {
  Awake two;
  const int fd = two.far.fd.get();
  const Set set(fd, EPOLLIN);
  const auto exchange = [&] {
    for (int i = 0; i < 20; ++i) {
      two.near.send("x");
      ASSERT_EQ(set.wait(20'000), fd);
      EXPECT_EQ(two.far.receive(), "x");
    }
  };
  exchange();
  UniqueFd copy(::dup(fd));
  exchange();
  two.far.fd = std::move(copy);
  exchange();
}

TEST(Datagrams, OverVersionSix) {
  if (!Socket("::1", AF_INET6).bound) GTEST_SKIP() << "no ::1 on this machine";
  const Two two("::1", AF_INET6);
  const sockaddr_in6 from = sender_of_a_byte(two);
  EXPECT_EQ(from.sin6_port, reinterpret_cast<const sockaddr_in6*>(&two.near.name)->sin6_port);
}

TEST(Datagrams, OverVersionFourThroughASocketOfVersionSix) {
  if (!Socket("::1", AF_INET6).bound) GTEST_SKIP() << "no ::1 on this machine";
  const sockaddr_in6 from = sender_of_a_byte(Two("::ffff:127.0.0.1", AF_INET6));
  EXPECT_TRUE(IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
}

TEST(Datagrams, BetweenTheVersions) {
  if (!Socket("::1", AF_INET6).bound) GTEST_SKIP() << "no ::1 on this machine";
  const Socket six("::ffff:127.0.0.1", AF_INET6);
  const Socket four;
  const auto port = reinterpret_cast<const sockaddr_in6*>(&six.name)->sin6_port;
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = port;
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 40; ++i) {
    ASSERT_EQ(
        ::sendto(four.fd.get(), "ping", 4, 0, reinterpret_cast<sockaddr*>(&there), sizeof there),
        4);
    sockaddr_in6 from{};
    socklen_t size = sizeof from;
    char text[8];
    ASSERT_EQ(
        ::recvfrom(six.fd.get(), text, sizeof text, 0, reinterpret_cast<sockaddr*>(&from), &size),
        4);
    ASSERT_TRUE(IN6_IS_ADDR_V4MAPPED(&from.sin6_addr));
    ASSERT_EQ(::sendto(six.fd.get(), "pong", 4, 0, reinterpret_cast<sockaddr*>(&from), size), 4);
    ASSERT_EQ(four.receive(), "pong");
  }
}

TEST(Datagrams, AreNotPutAtBadAddresses) {
  const Two two;
  const int fd = two.far.fd.get();
  EXPECT_EQ(::send(two.near.fd.get(), nullptr, 3, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  two.near.send("lost");
  EXPECT_EQ(::recv(fd, reinterpret_cast<void*>(1), 4, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  two.near.send("next");
  EXPECT_EQ(two.far.receive(), "next");
}

TEST(Datagrams, AreLostToBadAddressesAlsoInMemory) {
  const Awake two;
  two.near.send("lost");
  two.near.send("next");
  EXPECT_EQ(::recv(two.far.fd.get(), reinterpret_cast<void*>(1), 4, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(two.far.receive(), "next");
}

TEST(Datagrams, GoOnWhereTheDescriptorIsPassed) {
  const Two two;
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  const int fd = two.far.fd.get();
  ASSERT_TRUE(test::send_descriptor(here.get(), fd));
  two.near.send("x");
  EXPECT_TRUE(readable_for_kernel(fd));
  EXPECT_EQ(two.far.receive(), "x");
}

}  // namespace
}  // namespace farcall::preload
