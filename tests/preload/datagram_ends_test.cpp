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
  explicit DeadReceiver(bool with_answers = true) : answers(with_answers) {
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
        const ssize_t got = ::recvfrom(own.fd.get(), text, sizeof text, 0,
                                       reinterpret_cast<sockaddr*>(&from), &size);
        if (got == 5) steps.done(), steps.await();
        if (got == 6) ::_exit(0);
        if (got == 4 && answers)
          (void)::sendto(own.fd.get(), "pong", 4, 0, reinterpret_cast<sockaddr*>(&from), size);
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
    const int flows = answers ? 2 : 1;
    for (int i = 0; i < 10'000; ++i) {
      near.send("ping");
      if (!answers)
        ::usleep(500);
      else
        ASSERT_EQ(near.receive(), "pong");
      if (i > 60 && (!preloaded() || shared_mappings() == before + flows)) return;
    }
    FAIL() << "not accelerated";
  }
  void die() const {
    EXPECT_EQ(::kill(child, SIGKILL), 0);
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  }
  bool answers;
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

// A socket whose receiver has died, to which it has sent something since.
struct Late {
  explicit Late(bool with_answers) : far(with_answers), near(sender_to(far)) {
    talk_until_it_dies(far, near);
    near.send("late");
  }
  DeadReceiver far;
  Socket near;
};

// However the program waits, or looks without waiting, it is told so.
class DatagramsToTheDead : public ::testing::TestWithParam<bool> {
 protected:
  const Late late_{GetParam()};
  const int fd_ = late_.near.fd.get();
  // Calls look() until it is true, for a while.
  template <class Look>
  static bool in_time(Look look) {
    for (int i = 0; i < 5000; ++i) {
      if (look()) return true;
      ::usleep(1000);
    }
    return false;
  }
};

TEST_P(DatagramsToTheDead, AreToldOfByAReceiveCall) {
  EXPECT_EQ(late_.near.receive(), "(ECONNREFUSED)");
}

TEST_P(DatagramsToTheDead, AreToldOfByAReceiveCallThatDoesNotWait) {
  std::string got;
  EXPECT_TRUE(in_time([&] { return (got = late_.near.receive(MSG_DONTWAIT)) != "(EAGAIN)"; }));
  EXPECT_EQ(got, "(ECONNREFUSED)");
}

TEST_P(DatagramsToTheDead, AreToldOfByPoll) {
  pollfd wait{.fd = fd_, .events = 0, .revents = 0};
  EXPECT_EQ(::poll(&wait, 1, 10'000), 1);
  EXPECT_EQ(wait.revents, POLLERR);
}

TEST_P(DatagramsToTheDead, AreToldOfByAPollThatDoesNotWait) {
  EXPECT_TRUE(in_time([&] { return poll_once(fd_) == POLLERR; }));
}

TEST_P(DatagramsToTheDead, AreToldOfByASet) {
  const Set set(fd_, 0);
  EXPECT_EQ(set.wait(10'000), fd_);
}

TEST_P(DatagramsToTheDead, AreToldOfByASetThatDoesNotWait) {
  const Set set(fd_, EPOLLIN);
  EXPECT_TRUE(in_time([&] { return set.wait() == fd_; }));
}

TEST_P(DatagramsToTheDead, AreToldOfAsTheErrorOfTheSocket) {
  int error = 0;
  EXPECT_TRUE(in_time([&] {
    socklen_t size = sizeof error;
    return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error != 0;
  }));
  EXPECT_EQ(error, ECONNREFUSED);
}

INSTANTIATE_TEST_SUITE_P(That, DatagramsToTheDead, ::testing::Bool(), [](const auto& tested) {
  return std::string(tested.param ? "Answered" : "OnlyHeard");
});

// An error that stands already, as of what was sent past the library, is told to who sends next. It
// is the program's to find, and what nobody has read is sent all the same.
TEST(DatagramEnds, WhatIsSentToTheDeadIsRefusedBesideAnErrorThatStandsAlready) {
  const DeadReceiver far;
  const Socket near = sender_to(far);
  talk_until_it_dies(far, near);
  near.send("late");
  long sent = -1;
  for (int i = 0; i < 3 && sent != 1; ++i)
    sent = kernel(SYS_sendto, near.fd.get(), "x", 1, 0, nullptr, 0);
  ASSERT_EQ(sent, 1);
  EXPECT_EQ(near.receive(), "(ECONNREFUSED)");
  EXPECT_EQ(near.receive(MSG_DONTWAIT), "(EAGAIN)");
}

// One that ends says so.
TEST(DatagramEnds, WhatIsSentToOneThatHasEndedIsRefusedAtOnce) {
  for (int i = 0; i < 8; ++i) {
    const DeadReceiver far;
    const Socket near = sender_to(far);
    far.talk_to(near);
    near.send("leave!");
    EXPECT_EQ(exit_status(far.child), 0);
    near.send("late");
    int error = 0;
    socklen_t size = sizeof error;
    EXPECT_EQ(::getsockopt(near.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size), 0);
    ASSERT_EQ(error, ECONNREFUSED) << i;
  }
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

// Their sum is that of a short one again.
TEST(DatagramEnds, OneWhosePartsOverflowTogetherIsRefused) {
  const Awake two;
  char bytes[16] = {};
  iovec parts[5];
  for (iovec& part : parts) part = {.iov_base = bytes, .iov_len = SIZE_MAX / 4 + 1};
  parts[4].iov_len = sizeof bytes;
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 5;
  EXPECT_EQ(::sendmsg(two.near.fd.get(), &message, 0), -1);
  EXPECT_TRUE(errno == EFAULT || errno == EMSGSIZE) << strerrorname_np(errno);
  two.near.send("after");
  EXPECT_EQ(two.far.receive(), "after");
}

}  // namespace
}  // namespace farcall::preload
