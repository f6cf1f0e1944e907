// SPDX-License-Identifier: Apache-2.0
//
// Datagrams to receivers that have died, and those that are too long. The tests run as those of
// datagram_contract_test.cpp do.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "children.hpp"
#include "datagrams.hpp"
#include "farcall/memory.hpp"
#include "steps.hpp"

namespace farcall::preload {
namespace {

// A receiver in a process of its own, which answers and then reads no more.
struct DeadReceiver {
  DeadReceiver() {
    const Steps named;
    Socket far;
    child = in_child([&] {
      // A socket that was there before the fork shares no memory: one of its own at that address.
      const auto port = ntohs(reinterpret_cast<const sockaddr_in&>(far.name).sin_port);
      far.fd.reset();
      named.await();
      const Socket own("127.0.0.1", AF_INET, port);
      if (!own.bound) ::_exit(2);
      named.done();
      for (;;) {
        char text[8];
        sockaddr_storage from{};
        socklen_t size = sizeof from;
        if (::recvfrom(own.fd.get(), text, sizeof text, 0, reinterpret_cast<sockaddr*>(&from),
                       &size) == 4)
          (void)::sendto(own.fd.get(), "pong", 4, 0, reinterpret_cast<sockaddr*>(&from), size);
        else
          steps.done(), steps.await();
      }
    });
    address = far.name;
    far.fd.reset();
    named.step();
  }
  DeadReceiver(const DeadReceiver&) = delete;
  DeadReceiver& operator=(const DeadReceiver&) = delete;

  void talk_to(const Socket& near) const {
    const int before = shared_mappings();
    for (int i = 0; i < 10'000; ++i) {
      near.send("ping");
      ASSERT_EQ(near.receive(), "pong");
      if (i > 60 && (!preloaded() || shared_mappings() == before + 2)) return;
    }
    FAIL() << "not accelerated";
  }
  void die() const {
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  }
  Steps steps;
  pid_t child = -1;
  sockaddr_storage address{};
};

Socket sender_to(const DeadReceiver& receiver) {
  Socket near;
  EXPECT_EQ(::connect(near.fd.get(), reinterpret_cast<const sockaddr*>(&receiver.address),
                      sizeof(sockaddr_in)),
            0);
  return near;
}

void talk_until_it_dies(const DeadReceiver& far, const Socket& near) {
  far.talk_to(near);
  near.send("stop!");
  far.steps.await_done();
  far.die();
}

// What was sent to it just after is refused, as it is by a port without a socket.
TEST(DatagramEnds, WhatIsSentToTheDeadIsRefused) {
  const DeadReceiver far;
  const Socket near = sender_to(far);
  talk_until_it_dies(far, near);
  near.send("late");
  EXPECT_EQ(near.receive(), "(ECONNREFUSED)");
}

// Who has its address next gets what is sent there from then on.
TEST(DatagramEnds, AnotherReceiverAtTheAddressOfTheDeadHearsTheRest) {
  const DeadReceiver far;
  const Socket near = sender_to(far);
  talk_until_it_dies(far, near);
  const Socket next("127.0.0.1", AF_INET,
                    ntohs(reinterpret_cast<const sockaddr_in&>(far.address).sin_port));
  ASSERT_TRUE(next.bound);
  const timeval limit{.tv_sec = 10, .tv_usec = 0};
  ::setsockopt(next.fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::usleep(20'000);  // longer than the library relies on what it knew
  near.send("hello");
  EXPECT_EQ(next.receive(), "hello");
}

TEST(DatagramEnds, OneWhosePartsAreTooLongTogetherIsRefused) {
  const Awake two;
  std::vector<char> bytes(40'000, 'x');
  iovec parts[2] = {{.iov_base = bytes.data(), .iov_len = bytes.size()},
                    {.iov_base = bytes.data(), .iov_len = bytes.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  EXPECT_EQ(::sendmsg(two.near.fd.get(), &message, 0), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  two.near.send("after");
  EXPECT_EQ(two.far.receive(), "after");
}

}  // namespace
}  // namespace farcall::preload
