// SPDX-License-Identifier: Apache-2.0
//
// Calls with arguments that are wrong, and addresses that are accepted from and connected to.
// These tests run as those of contract_test.cpp do.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "calls.hpp"
#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// --- arguments that are wrong

TEST(Calls, WrongLengthsOfAnAddressAreRefused) {
  const Pair pair;
  for (int round = 0; round < 3; ++round) {
    char bytes[8] = "x";
    sockaddr_in address{};
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    Message message;
    message.head.msg_name = &address;
    message.head.msg_namelen = static_cast<socklen_t>(-1);
    EXPECT_EQ(message.receive(pair.server.get(), MSG_DONTWAIT), "(EINVAL)");
    EXPECT_EQ(::sendto(pair.client.get(), bytes, 1, 0, generic, static_cast<socklen_t>(-1)), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::sendto(pair.client.get(), bytes, 1, 0, generic, 1000), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::sendto(pair.client.get(), bytes, 1, 0, reinterpret_cast<sockaddr*>(16), 16), -1);
    EXPECT_EQ(errno, EFAULT);
    Message sent;
    sent.head.msg_controllen = 0;
    sent.head.msg_name = &address;
    sent.head.msg_namelen = static_cast<socklen_t>(-1);
    EXPECT_EQ(::sendmsg(pair.client.get(), &sent.head, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    // The bytes are gone by then.
    EXPECT_EQ(send(pair.client.get(), "gone"), "4");
    auto negative = static_cast<socklen_t>(-1);
    EXPECT_EQ(::recvfrom(pair.server.get(), bytes, 4, 0, generic, &negative), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(send(pair.client.get(), "gone"), "4");
    EXPECT_EQ(::recvfrom(pair.server.get(), bytes, 4, 0, generic, nullptr), -1);
    EXPECT_EQ(errno, EFAULT);
    pair.talk(2);
  }
}

TEST(Calls, TheLengthOfANameThatNobodyAskedForStaysAsItWas) {
  const Pair pair;
  pair.put("text");
  Message message;
  message.head.msg_namelen = 77;
  EXPECT_EQ(message.receive(pair.server.get(), MSG_DONTWAIT), "text");
  EXPECT_EQ(message.head.msg_namelen, 77U);
}

TEST(Calls, WhatAPeerHasNotReadIsNotUnderWayWhenItIsGone) {
  if (!over_unix()) return;
  UsedPair pair;
  pair.put("unread");
  int bytes = 0;
  ASSERT_EQ(::ioctl(pair.client.get(), SIOCOUTQ, &bytes), 0);
  EXPECT_GT(bytes, 0);
  pair.server.reset();
  ASSERT_EQ(::ioctl(pair.client.get(), SIOCOUTQ, &bytes), 0);
  EXPECT_EQ(bytes, 0);
}

TEST(Calls, WrongNumbersOfPartsAreRefused) {
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "there"), "5");
  char byte = 'x';
  std::vector<iovec> parts(1025, iovec{.iov_base = &byte, .iov_len = 1});
  const int server = pair.server.get();
  const int client = pair.client.get();
  volatile int less_than_none = -1;  // not for the compiler to know
  for (int round = 0; round < 3; ++round) {
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = parts.size();
    EXPECT_EQ(::recvmsg(server, &message, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EMSGSIZE);
    EXPECT_EQ(::sendmsg(client, &message, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EMSGSIZE);
    mmsghdr several{};
    several.msg_hdr = message;
    EXPECT_EQ(::recvmmsg(server, &several, 1, MSG_DONTWAIT, nullptr), -1);
    EXPECT_EQ(errno, EMSGSIZE);
    EXPECT_EQ(::sendmmsg(client, &several, 1, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EMSGSIZE);
    EXPECT_EQ(::readv(server, parts.data(), 1025), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::writev(client, parts.data(), 1025), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::readv(server, parts.data(), less_than_none), -1);
    EXPECT_EQ(errno, EINVAL);
    iovec negative{.iov_base = &byte, .iov_len = static_cast<std::size_t>(-1)};
    message.msg_iov = &negative;
    message.msg_iovlen = 1;
    EXPECT_EQ(::recvmsg(server, &message, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::sendmsg(client, &message, MSG_DONTWAIT), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(::writev(client, &negative, 1), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(receive(server, 5, MSG_PEEK), "there");
  }
  EXPECT_EQ(receive(server), "there");
}

TEST(Calls, AsManyPartsAsTheKernelTakesMove) {
  const Pair pair;
  std::string bytes(1024, 'x');
  std::vector<iovec> parts;
  for (char& byte : bytes) parts.push_back({.iov_base = &byte, .iov_len = 1});
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(::writev(pair.client.get(), parts.data(), 1024), 1024) << errno_name();
    bytes.assign(1024, '.');
    ASSERT_EQ(::readv(pair.server.get(), parts.data(), 1024), 1024) << errno_name();
    EXPECT_EQ(bytes, std::string(1024, 'x'));
    pair.talk(2);
  }
}

// The kernel moves less than that with one call, and asks for no more room than it moves.
TEST(Calls, AnySizeMayBeAskedFor) {
  std::string bytes(64, '.');
  char* volatile room = bytes.data();  // not for the compiler to know
  for (const std::size_t size : {SIZE_MAX, SIZE_MAX / 2, std::size_t{1} << 31}) {
    const UsedPair pair;
    pair.put("there");
    EXPECT_EQ(::recv(pair.server.get(), room, size, MSG_DONTWAIT), 5) << errno_name();
    EXPECT_EQ(bytes.substr(0, 6), "there.");
    pair.put("there");
    EXPECT_EQ(::recvfrom(pair.server.get(), room, size, 0, nullptr, nullptr), 5) << errno_name();
    pair.talk(2);
  }
}

TEST(Calls, WaitingForNoEventsIsRefused) {
  const UsedPair pair;
  pair.put("x");
  epoll_event event{};
  for (const int most : {0, -1}) {
    EXPECT_EQ(::epoll_wait(pair.set.get(), &event, most, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(::epoll_wait(pair.set.get(), &event, 1, 0), 1);
}

// A socket of a unix stream that is bound tells of itself with each of its bytes.
TEST(Calls, TheAddressOfASenderHasItsLengthWhateverRoomThereIs) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  Pair pair(false);
  pair.client = stream_socket();
  if (over_unix()) {
    const sockaddr nameless{.sa_family = AF_UNIX, .sa_data = {}};
    ASSERT_EQ(::bind(pair.client.get(), &nameless, sizeof(sa_family_t)), 0);
  }
  ASSERT_EQ(::connect(pair.client.get(), address.get(), address.size), 0);
  pair.server = accept_from(listener);
  Address own;
  ASSERT_EQ(::getsockname(pair.client.get(), own.get(), &own.size), 0);
  for (int i = 0; i < 30; ++i) {
    pair.put("x");
    char byte;
    unsigned char name[8];
    std::memset(name, 0xee, sizeof name);
    socklen_t size = 4;
    ASSERT_EQ(::recvfrom(pair.server.get(), &byte, 1, 0, reinterpret_cast<sockaddr*>(name), &size),
              1);
    EXPECT_EQ(size, over_unix() ? own.size : 0);
    EXPECT_EQ(name[4], 0xee);
    EXPECT_EQ(send(pair.server.get(), "y"), "1");
    EXPECT_EQ(receive(pair.client.get()), "y");
  }
}

// Who gets less than there is room for takes that for all.
TEST(Calls, AnyNumberOfPartsIsFilled) {
  const Pair pair;
  const int server = pair.server.get();
  std::string text;
  for (int i = 0; i < 4000; ++i) text += static_cast<char>('a' + i % 23);
  for (const std::size_t count : {31UL, 33UL, 500UL, 1000UL}) {
    pair.talk(3);
    std::string got(text.size(), '\0');
    std::vector<iovec> parts;
    for (std::size_t i = 0; i < count; ++i)
      parts.push_back({.iov_base = got.data() + 4 * i, .iov_len = 4});
    parts.back().iov_len = text.size() - 4 * (count - 1);
    msghdr message{};
    message.msg_iov = parts.data();
    message.msg_iovlen = count;
    const auto expect_all = [&](ssize_t result) {
      EXPECT_EQ(result, std::ssize(text)) << count;
      EXPECT_EQ(got, text);
      got.assign(text.size(), '\0');
    };
    // Told so, the kernel is asked to tell of what comes, and carries it.
    for (const int flags : {0, int{MSG_PEEK}, int{MSG_DONTWAIT}}) {
      ASSERT_EQ(receive(server, 1, MSG_DONTWAIT), "(EAGAIN)");
      ASSERT_EQ(receive(server, 1, MSG_DONTWAIT), "(EAGAIN)");
      pair.put(text);
      expect_all(::recvmsg(server, &message, flags));
      if (flags == MSG_PEEK) expect_all(::recvmsg(server, &message, 0));
    }
    pair.put(text);
    expect_all(::readv(server, parts.data(), static_cast<int>(count)));
  }
}

TEST(Calls, WhatAccompaniesAMessageMayBeNonsense) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd one(ends[0]);
  const UniqueFd other(ends[1]);
  for (const std::size_t length : {std::size_t{0}, std::size_t{3}, CMSG_LEN(0) - 1,
                                   std::size_t{1} << 40, static_cast<std::size_t>(-1)}) {
    Message message;
    cmsghdr* const head = CMSG_FIRSTHDR(&message.head);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = length;
    EXPECT_EQ(::sendmsg(one.get(), &message.head, 0), -1);
    EXPECT_EQ(errno, EINVAL);
  }
}

// --- accept

TEST(Calls, AcceptRefusesANegativeLength) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  UniqueFd local(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  ASSERT_EQ(::bind(local.get(), reinterpret_cast<sockaddr*>(&name), sizeof(sa_family_t)), 0);
  ASSERT_EQ(::listen(local.get(), 4), 0);
  socklen_t size = sizeof name;
  ASSERT_EQ(::getsockname(local.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
  const UniqueFd guest(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(guest.get(), reinterpret_cast<sockaddr*>(&name), size), 0);
  const UniqueFd client = connect_to(address);
  for (const int fd : {listener.get(), local.get()}) {
    sockaddr_storage peer{};
    auto length = static_cast<socklen_t>(-1);
    EXPECT_EQ(::accept(fd, reinterpret_cast<sockaddr*>(&peer), &length), -1);
    EXPECT_EQ(errno, EINVAL);
  }
}

TEST(TcpCalls, AcceptTellsAsMuchOfTheAddressAsFits) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  for (const socklen_t room : {0u, 2u, 8u, 16u, 100u}) {
    const UniqueFd client = connect_to(address);
    unsigned char peer[100];
    std::memset(peer, 0xee, sizeof peer);
    socklen_t size = room;
    const UniqueFd server(::accept(listener.get(), reinterpret_cast<sockaddr*>(peer), &size));
    ASSERT_GE(server.get(), 0);
    EXPECT_EQ(size, sizeof(sockaddr_in));
    for (std::size_t i = std::min<std::size_t>(room, sizeof(sockaddr_in)); i < sizeof peer; ++i)
      EXPECT_EQ(peer[i], 0xee) << i << " of " << room;
  }
}

TEST(TcpCalls, EveryAddressOfThisHostIsLocal) {
  sockaddr_in address{};
  UniqueFd listener = stream_socket();
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listener.get(), 16), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  for (const char* const to : {"127.0.0.1", "127.0.0.2", "127.255.255.254", "0.0.0.0"}) {
    ASSERT_EQ(::inet_pton(AF_INET, to, &address.sin_addr), 1);
    Pair pair(false);
    pair.client = stream_socket();
    ASSERT_EQ(::connect(pair.client.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    pair.server = accept_from(listener);
    const int before = stream_mappings();
    pair.talk(20);
    EXPECT_EQ(stream_mappings() - before, preloaded() ? 2 : 0) << to;
  }
  // A broadcast address is nobody's to connect to.
  ASSERT_EQ(::inet_pton(AF_INET, "127.255.255.255", &address.sin_addr), 1);
  const UniqueFd client(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), size), -1);
  EXPECT_EQ(errno, ENETUNREACH);
}

}  // namespace
}  // namespace farcall::preload
