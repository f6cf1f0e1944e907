// SPDX-License-Identifier: Apache-2.0
//
// What is told of datagrams beside their bytes, whatever carries them. These tests run as those of
// contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "datagrams.hpp"
#include "several.hpp"

namespace farcall::preload {
namespace {

TEST(DatagramMessages, EndWithTheirTimeLimit) {
  const Awake two;
  two.near.send("a");
  two.near.send("b");
  Several both(2, 1);
  timespec none{};
  EXPECT_EQ(both.receive(two.far.fd.get(), 0, &none), 1);
  EXPECT_EQ(both.text(0), "a");
  EXPECT_EQ(two.far.receive(), "b");
}

TEST(DatagramMessages, TellWhatIsLeftOfTheirTimeLimit) {
  const Awake two;
  two.near.send("a");
  expect_the_limit_to_be_told(two.far.fd.get());
}

TEST(DatagramMessages, AreNotWaitedForWhereOneIsEnough) {
  const Awake two;
  two.near.send("a");
  Several both(2, 1);
  EXPECT_EQ(both.receive(two.far.fd.get(), MSG_WAITFORONE), 1);
  EXPECT_EQ(both.text(0), "a");
}

TEST(DatagramMessages, AreSentAsManyAsTheKernelTakes) {
  const Awake two;
  Several many(1100, 0);
  EXPECT_EQ(many.send(two.near.fd.get()), 1024);
}

TEST(DatagramMessages, AreReceivedAsManyAsAreAskedFor) {
  const Awake two;
  for (int i = 0; i < 1100; ++i) two.near.send("x");
  Several many(1100, 1);
  EXPECT_GT(many.receive(two.far.fd.get(), MSG_DONTWAIT), 0);
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
}

// An error that comes in the middle of a call is the next one's.
TEST(DatagramMessages, AreFollowedByTheErrorThatEndedTheirCall) {
  Two two;
  std::thread later = in_a_moment(two.far, "awaited");
  EXPECT_EQ(two.near.receive(), "awaited");
  later.join();
  two.far.send("last");
  two.far.fd.reset();
  two.near.send("nobody is there");
  Several both(2, 8);
  const int got = both.receive(two.near.fd.get(), MSG_DONTWAIT);
  if (got == 1) {
    EXPECT_EQ(both.text(0), "last");
    EXPECT_EQ(poll_once(two.near.fd.get(), 1000) & POLLERR, POLLERR);
    EXPECT_EQ(two.near.receive(MSG_DONTWAIT), "(ECONNREFUSED)");
  } else {
    EXPECT_EQ(got, -1);
    EXPECT_EQ(errno, ECONNREFUSED);
    EXPECT_EQ(two.near.receive(MSG_DONTWAIT), "last");
  }
  EXPECT_EQ(two.near.receive(MSG_DONTWAIT), "(EAGAIN)");
}

TEST(DatagramMessages, AreFollowedByTheErrorOfABadAddress) {
  const Awake two;
  const int fd = two.far.fd.get();
  two.near.send("one");
  two.near.send("lost");
  char text[8];
  iovec parts[2] = {{.iov_base = text, .iov_len = sizeof text},
                    {.iov_base = reinterpret_cast<void*>(1), .iov_len = 8}};
  mmsghdr messages[2] = {};
  for (int i = 0; i < 2; ++i) {
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
  }
  EXPECT_EQ(::recvmmsg(fd, messages, 2, MSG_DONTWAIT, nullptr), 1);
  EXPECT_EQ(poll_once(fd), POLLERR);
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EFAULT)");
  EXPECT_EQ(poll_once(fd), 0);
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
}

TEST(DatagramMessages, OfTooManyPartsAreRefused) {
  const Awake two;
  two.near.send("there");
  std::vector<char> bytes(1025);
  std::vector<iovec> parts;
  for (char& byte : bytes) parts.push_back({.iov_base = &byte, .iov_len = 1});
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = 1025;
  EXPECT_EQ(::recvmsg(two.far.fd.get(), &message, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  EXPECT_EQ(::sendmsg(two.near.fd.get(), &message, 0), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  Several one(1, 0);
  one.head(0) = message;
  EXPECT_EQ(one.receive(two.far.fd.get(), MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EMSGSIZE);
  message.msg_iovlen = 1024;
  EXPECT_EQ(::recvmsg(two.far.fd.get(), &message, MSG_DONTWAIT), 5);
  EXPECT_EQ(::sendmsg(two.near.fd.get(), &message, 0), 1024);
  EXPECT_EQ(two.far.receive(), std::string(bytes.data(), 1024));
}

// One that just fits is whole, one that is longer is not; nothing comes with either.
TEST(DatagramMessages, AreToldToBeCutWhereTheyAre) {
  const Awake two;
  for (const std::size_t length : {3UL, 4UL, 5UL}) {
    two.near.send(std::string(length, 'x'));
    Several one(1, 4);
    char control[64] = {};
    one.head(0).msg_control = control;
    one.head(0).msg_controllen = sizeof control;
    ASSERT_EQ(::recvmsg(two.far.fd.get(), &one.head(0), 0),
              static_cast<ssize_t>(std::min(length, 4UL)));
    EXPECT_EQ(one.head(0).msg_flags, length > 4 ? MSG_TRUNC : 0) << length;
    EXPECT_EQ(one.head(0).msg_controllen, 0U);
  }
}

// As by the kernel, which says so whether or not a descriptor has come.
TEST(DatagramMessages, TellWhatWasAskedForDescriptors) {
  const Awake two;
  for (const int flags : {int{MSG_CMSG_CLOEXEC}, 0}) {
    two.near.send("x");
    Several one(1, 4);
    ASSERT_EQ(::recvmsg(two.far.fd.get(), &one.head(0), flags), 1);
    EXPECT_EQ(one.head(0).msg_flags, flags);
  }
}

TEST(DatagramMessages, HaveASizeThatCanBeAskedFor) {
  const Awake two;
  for (const std::size_t size : {5UL, 17UL, 0UL}) {
    two.near.send(std::string(size, 'x'));
    two.near.send("behind it");
    int told = -1;
    ASSERT_EQ(::ioctl(two.far.fd.get(), FIONREAD, &told), 0);
    EXPECT_EQ(told, static_cast<int>(size));
    EXPECT_EQ(two.far.receive(), std::string(size, 'x'));
    EXPECT_EQ(two.far.receive(), "behind it");
  }
}

// What is said to the kernel with one the kernel has to carry.
TEST(DatagramMessages, WithAWordForTheKernelGoByIt) {
  const Awake two;
  two.send_by_kernel("with a word");
  EXPECT_TRUE(readable_for_kernel(two.far.fd.get()));
  EXPECT_EQ(two.far.receive(), "with a word");
}

TEST(DatagramMessages, AreNotTakenByWhoAsksForErrors) {
  const Awake two;
  two.near.send("there");
  EXPECT_EQ(two.far.receive(MSG_ERRQUEUE | MSG_DONTWAIT), "(EAGAIN)");
  EXPECT_EQ(two.far.receive(), "there");
}

TEST(DatagramMessages, AreTheOnesThatWereLookedAt) {
  const Socket far;
  const Socket senders[2];
  for (const Socket& one : senders) one.connect_to(far);
  for (int i = 0; i < 80; ++i) {
    senders[i % 2].send("x");
    EXPECT_EQ(poll_once(far.fd.get(), 1000), POLLIN);
    EXPECT_EQ(far.receive(), "x");
  }
  for (int i = 0; i < 10; ++i) {
    senders[0].send("of the first");
    senders[1].send("of the second");
    for (int k = 0; k < 2; ++k) {
      const std::string seen = far.receive(MSG_PEEK);
      EXPECT_EQ(far.receive(MSG_PEEK), seen);
      EXPECT_EQ(far.receive(), seen);
    }
  }
}

TEST(DatagramMessages, TellHowFarTheyMayGoWhereThatIsAskedFor) {
  const Awake two;
  const int on = 1;
  ASSERT_EQ(::setsockopt(two.far.fd.get(), IPPROTO_IP, IP_RECVTTL, &on, sizeof on), 0);
  two.near.send("x");
  Several one(1, 4);
  alignas(cmsghdr) char control[64] = {};
  one.head(0).msg_control = control;
  one.head(0).msg_controllen = sizeof control;
  ASSERT_EQ(::recvmsg(two.far.fd.get(), &one.head(0), 0), 1);
  const cmsghdr* const head = CMSG_FIRSTHDR(&one.head(0));
  ASSERT_NE(head, nullptr);
  EXPECT_EQ(head->cmsg_level, IPPROTO_IP);
  EXPECT_EQ(head->cmsg_type, IP_TTL);
}

TEST(DatagramMessages, RaiseASignalWhereThatIsAskedFor) {
  int (*const ways[])(int) = {
      [](int fd) {
        int on = 1;
        return ::ioctl(fd, FIOASYNC, &on);
      },
      [](int fd) { return ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_ASYNC); },
  };
  for (const auto& way : ways) {
    const Awake two;
    ASSERT_EQ(way(two.far.fd.get()), 0);
    two.near.send("by the kernel");
    EXPECT_TRUE(readable_for_kernel(two.far.fd.get())) << "way " << &way - ways;
    EXPECT_EQ(two.far.receive(), "by the kernel");
  }
}

// What was set before the library looked, and past it.
TEST(DatagramMessages, ComeWithWhatWasAskedForPastTheLibrary) {
  struct Asked {
    int level, option;
    int told;  // 0: not with each
  };
  constexpr Asked kAsked[] = {
      {IPPROTO_IP, IP_PKTINFO, IP_PKTINFO},
      {IPPROTO_IP, IP_RECVTTL, IP_TTL},
      {IPPROTO_IP, IP_RECVTOS, IP_TOS},
      {IPPROTO_IP, IP_RECVORIGDSTADDR, IP_RECVORIGDSTADDR},
      {SOL_SOCKET, SO_TIMESTAMP, SCM_TIMESTAMP},
      {SOL_SOCKET, SO_TIMESTAMPNS, SCM_TIMESTAMPNS},
      {SOL_SOCKET, SO_TIMESTAMPING, 0},
      {SOL_SOCKET, SO_RXQ_OVFL, 0},
      {SOL_SOCKET, SO_REUSEADDR, 0},
      {SOL_SOCKET, SO_REUSEPORT, 0},
  };
  for (const auto& [level, option, told] : kAsked) {
    SCOPED_TRACE(option);
    const Socket near;
    const Socket far;
    near.connect_to(far);
    const int on = 1;
    ASSERT_EQ(kernel(SYS_setsockopt, far.fd.get(), level, option, &on, sizeof on), 0);
    for (int i = 0; i < 60; ++i) {
      near.send("x");
      Several one(1, 4);
      alignas(cmsghdr) char control[64] = {};
      one.head(0).msg_control = control;
      one.head(0).msg_controllen = sizeof control;
      ASSERT_EQ(::recvmsg(far.fd.get(), &one.head(0), 0), 1);
      const cmsghdr* const head = CMSG_FIRSTHDR(&one.head(0));
      if (told == 0) continue;
      ASSERT_NE(head, nullptr) << i;
      EXPECT_EQ(head->cmsg_level, level);
      EXPECT_EQ(head->cmsg_type, told);
    }
    EXPECT_EQ(shared_mappings(), 0);
  }
}

TEST(DatagramMessages, AreNotSentToANameOfAWrongLength) {
  const Awake two;
  const auto* const name = reinterpret_cast<const sockaddr*>(&two.far.name);
  for (const socklen_t size : {0U, 200U, 0xffff'ffffU}) {
    EXPECT_EQ(::sendto(two.near.fd.get(), "x", 1, 0, name, size), -1) << size;
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
}

TEST(DatagramMessages, WithANameOfNegativeLengthAreRefused) {
  const Awake two;
  two.near.send("there");
  Several one(1, 8);
  sockaddr_in name{};
  one.head(0).msg_name = &name;
  one.head(0).msg_namelen = static_cast<socklen_t>(-1);
  EXPECT_EQ(::recvmsg(two.far.fd.get(), &one.head(0), MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(one.receive(two.far.fd.get(), MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(two.far.receive(), "there");
}

// A socket may begin and end to wait at any time.
TEST(DatagramMessages, AreWaitedForAsItWasSaidLast) {
  const Awake two;
  const int fd = two.far.fd.get();
  const timeval for_ever{};
  ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &for_ever, sizeof for_ever), 0);
  const int flags = ::fcntl(fd, F_GETFL);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(::fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
    EXPECT_EQ(two.far.receive(), "(EAGAIN)");
    ASSERT_EQ(::fcntl(fd, F_SETFL, flags), 0);
    std::thread later = in_a_moment(two.near, "x");
    EXPECT_EQ(two.far.receive(), "x");
    later.join();
    int on = 1;
    ASSERT_EQ(::ioctl(fd, FIONBIO, &on), 0);
    EXPECT_EQ(two.far.receive(), "(EAGAIN)");
    on = 0;
    ASSERT_EQ(::ioctl(fd, FIONBIO, &on), 0);
    later = in_a_moment(two.near, "x");
    EXPECT_EQ(two.far.receive(), "x");
    later.join();
  }
}

}  // namespace
}  // namespace farcall::preload
