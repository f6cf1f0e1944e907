// SPDX-License-Identifier: Apache-2.0
//
// What single calls say about sockets, in their corners: flags, lengths, limits, options, and the
// ways on which a program leaves the library. These tests run twice, as they are and with the
// library preloaded; the kernel's answer is the right one.
#include <aio.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

#ifndef TCP_INQ
#define TCP_INQ 36
#define TCP_CM_INQ TCP_INQ
#endif

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

std::string receive_exactly(int fd, std::size_t size) {
  std::string text;
  while (text.size() < size) {
    const std::string part = receive(fd, size - text.size());
    text += part;
    if (part.empty() || part[0] == '(') break;
  }
  return text;
}

void set(int fd, int level, int option, int value) {
  ASSERT_EQ(::setsockopt(fd, level, option, &value, sizeof value), 0) << errno_name();
}

UniqueFd udp_socket() {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// What the kernel has sent of it, also again.
std::uint64_t sent_by_kernel(int fd) {
  struct {
    tcp_info info;
    std::byte newer[256];
  } counted{};
  // After the fields that the C library knows: pacing rates, and acked, received, segments.
  struct Newer {
    std::uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
    std::uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
    std::uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
    std::uint32_t delivered, delivered_ce;
    std::uint64_t bytes_sent;
  } newer{};
  socklen_t size = sizeof counted;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &counted, &size), 0);
  std::memcpy(&newer, &counted.newer, sizeof newer);
  return newer.bytes_sent;
}

struct Message {
  explicit Message(std::size_t room = 64) : text(room, '\0') {
    part = {.iov_base = text.data(), .iov_len = room};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control;
    head.msg_controllen = sizeof control;
  }
  std::string receive(int fd, int flags = 0) {
    const ssize_t got = ::recvmsg(fd, &head, flags);
    return got < 0 ? errno_name() : text.substr(0, static_cast<std::size_t>(got));
  }
  // What accompanies the bytes: level, type and the first number of each.
  [[nodiscard]] const cmsghdr* companion(int level, int type) const {
    for (cmsghdr* one = CMSG_FIRSTHDR(&head); one != nullptr;
         one = CMSG_NXTHDR(const_cast<msghdr*>(&head), one))
      if (one->cmsg_level == level && one->cmsg_type == type) return one;
    return nullptr;
  }
  std::string text;
  iovec part{};
  alignas(cmsghdr) char control[256]{};
  msghdr head{};
};

// --- several messages at once

TEST(Calls, SeveralMessagesAreRefusedWithABadTimeLimit) {
  const Pair warm;
  const Pair cold(false);
  const UniqueFd udp = udp_socket();
  for (const int fd : {warm.server.get(), cold.server.get(), udp.get()})
    for (timespec limit : {timespec{0, 1'000'000'000}, timespec{-1, 0}, timespec{0, -1}}) {
      char byte = 0;
      iovec part{.iov_base = &byte, .iov_len = 1};
      mmsghdr message{};
      message.msg_hdr.msg_iov = &part;
      message.msg_hdr.msg_iovlen = 1;
      EXPECT_EQ(::recvmmsg(fd, &message, 1, 0, &limit), -1);
      EXPECT_EQ(errno, EINVAL);
    }
}

TEST(Calls, SeveralMessagesEndWithTheirTimeLimit) {
  for (const bool is_warm : {false, true}) {
    const Pair pair(is_warm);
    EXPECT_EQ(send(pair.client.get(), "ab"), "2");
    char bytes[2] = {};
    iovec parts[2] = {{&bytes[0], 1}, {&bytes[1], 1}};
    mmsghdr messages[2] = {};
    for (int i = 0; i < 2; ++i) {
      messages[i].msg_hdr.msg_iov = &parts[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    timespec none{};
    EXPECT_EQ(::recvmmsg(pair.server.get(), messages, 2, 0, &none), 1);
    EXPECT_EQ(messages[0].msg_len, 1u);
    timespec minute{.tv_sec = 60, .tv_nsec = 0};
    EXPECT_EQ(::recvmmsg(pair.server.get(), messages, 1, 0, &minute), 1);
    EXPECT_EQ(bytes[0], 'b');
    EXPECT_LT(minute.tv_sec, 60) << "what is left is written back";
  }
}

TEST(Calls, NothingFollowsAMessageThatWasSentInPart) {
  const Pair pair;
  std::string big(32 << 20, 'x');
  iovec part{.iov_base = big.data(), .iov_len = big.size()};
  mmsghdr messages[2] = {};
  messages[0].msg_hdr.msg_iov = &part;
  messages[0].msg_hdr.msg_iovlen = 1;
  EXPECT_EQ(::sendmmsg(pair.client.get(), messages, 2, MSG_DONTWAIT), 1);
  EXPECT_LT(messages[0].msg_len, big.size());
}

TEST(Calls, SeveralMessagesMoveOverAConnectionFromItsFirstByte) {
  const Pair pair(false);
  for (int round = 0; round < 20; ++round) {
    std::string texts[2] = {"one", "three"};
    iovec parts[2] = {{texts[0].data(), 3}, {texts[1].data(), 5}};
    mmsghdr messages[2] = {};
    for (int i = 0; i < 2; ++i) {
      messages[i].msg_hdr.msg_iov = &parts[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    ASSERT_EQ(::sendmmsg(pair.client.get(), messages, 2, 0), 2);
    EXPECT_EQ(messages[0].msg_len, 3u);
    EXPECT_EQ(messages[1].msg_len, 5u);
    for (std::string& text : texts) text.assign(text.size(), '.');
    ASSERT_EQ(::recvmmsg(pair.server.get(), messages, 2, MSG_WAITALL, nullptr), 2);
    EXPECT_EQ(texts[0] + texts[1], "onethree");
    EXPECT_EQ(send(pair.server.get(), "pong"), "4");
    EXPECT_EQ(receive(pair.client.get()), "pong");
  }
}

// --- what recvmsg() tells

TEST(Calls, AReceivedMessageHasNoFlagsButTheKernels) {
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  for (const int flags : {int{MSG_PEEK}, 0}) {
    Message message;
    message.head.msg_flags = -1;
    EXPECT_EQ(message.receive(pair.server.get(), flags), "hello");
    EXPECT_EQ(message.head.msg_flags, 0);
  }
  EXPECT_EQ(send(pair.client.get(), "again"), "5");
  Message message;
  EXPECT_EQ(message.receive(pair.server.get(), MSG_CMSG_CLOEXEC), "again");
  EXPECT_EQ(message.head.msg_flags, MSG_CMSG_CLOEXEC);
}

TEST(Calls, AFailedReceiveLeavesTheMessageAsItWas) {
  const Pair pair;
  Message message;
  message.head.msg_flags = MSG_OOB;
  message.head.msg_namelen = 7;
  EXPECT_EQ(message.receive(pair.server.get(), MSG_DONTWAIT), "(EAGAIN)");
  EXPECT_EQ(message.head.msg_flags, MSG_OOB);
  EXPECT_EQ(message.head.msg_namelen, 7u);
  EXPECT_EQ(message.head.msg_controllen, sizeof message.control);
}

// The kernel begins to note times somewhat later than it is asked to, and goes on as long as the
// connection is there that this returns.
Pair make_the_kernel_note_times() {
  Pair pair(false);
  set(pair.server.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    Message message;
    EXPECT_EQ(message.receive(pair.server.get()), "x");
    if (message.companion(SOL_SOCKET, SCM_TIMESTAMPNS) != nullptr) return pair;
    std::this_thread::sleep_for(1ms);
  }
  ADD_FAILURE() << "no times";
  return pair;
}

TEST(TcpCalls, ATimestampAccompaniesWhatIsReceived) {
  const Pair noted = make_the_kernel_note_times();
  const Pair pair;
  set(pair.server.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(send(pair.client.get(), "hello"), "5");
    Message message;
    EXPECT_EQ(message.receive(pair.server.get()), "hello");
    EXPECT_NE(message.companion(SOL_SOCKET, SCM_TIMESTAMPNS), nullptr);
    EXPECT_EQ(message.head.msg_flags & MSG_CTRUNC, 0);
    EXPECT_EQ(send(pair.client.get(), "more"), "4");
    Message without;
    without.head.msg_controllen = 1;
    EXPECT_EQ(without.receive(pair.server.get()), "more");
    EXPECT_EQ(without.head.msg_flags & MSG_CTRUNC, MSG_CTRUNC);
  }
}

void expect_to_be_told_what_is_left(const Pair& pair) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(send(pair.client.get(), "hello world"), "11");
    Message message(5);
    EXPECT_EQ(message.receive(pair.server.get()), "hello");
    const cmsghdr* const told = message.companion(IPPROTO_TCP, TCP_CM_INQ);
    ASSERT_NE(told, nullptr);
    int left = -1;
    std::memcpy(&left, CMSG_DATA(told), sizeof left);
    EXPECT_EQ(left, 6);
    EXPECT_EQ(receive(pair.server.get()), " world");
  }
}

TEST(TcpCalls, WhatIsLeftIsToldWhereThatWasAskedForLater) {
  const Pair pair;
  set(pair.server.get(), IPPROTO_TCP, TCP_INQ, 1);
  expect_to_be_told_what_is_left(pair);
}

TEST(TcpCalls, WhatIsLeftIsToldWhereThatWasAskedForFirst) {
  const Pair pair(false);
  set(pair.server.get(), IPPROTO_TCP, TCP_INQ, 1);
  pair.talk(20);
  expect_to_be_told_what_is_left(pair);
}

TEST(Calls, WhatAccompaniesASentMessageIsTheKernelsToJudge) {
  const Pair pair;
  for (int round = 0; round < 3; ++round) {
    Message message;
    message.text = "mark";
    message.part = {.iov_base = message.text.data(), .iov_len = message.text.size()};
    cmsghdr* const head = CMSG_FIRSTHDR(&message.head);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    message.head.msg_controllen = CMSG_SPACE(sizeof(int));
    head->cmsg_type = 0x7777;
    EXPECT_EQ(::sendmsg(pair.client.get(), &message.head, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    head->cmsg_type = SO_MARK;
    const ssize_t marked = ::sendmsg(pair.client.get(), &message.head, 0);  // for root only
    if (marked >= 0) {
      EXPECT_EQ(receive(pair.server.get()), "mark");
    }
    EXPECT_EQ(send(pair.client.get(), "plain"), "5");
    EXPECT_EQ(receive(pair.server.get()), "plain");
  }
}

TEST(Calls, EachDatagramHasATimeForWhoAsks) {
  const UniqueFd one = udp_socket();
  const UniqueFd other = udp_socket();
  for (const auto& [from, to] : {std::pair{&one, &other}, {&other, &one}}) {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ASSERT_EQ(::getsockname(to->get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    ASSERT_EQ(::connect(from->get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  }
  timespec last{};
  for (int i = 0; i < 120; ++i) {
    ASSERT_EQ(send(one.get(), "ping"), "4");
    ASSERT_EQ(receive(other.get()), "ping");
    ASSERT_EQ(send(other.get(), "pong"), "4");
    ASSERT_EQ(receive(one.get()), "pong");
    if (i < 99) continue;
    timespec time{};
    const int result = ::ioctl(one.get(), SIOCGSTAMPNS, &time);
    if (i == 99) continue;  // from now on the kernel keeps them
    ASSERT_EQ(result, 0) << errno_name();
    EXPECT_TRUE(time.tv_sec != last.tv_sec || time.tv_nsec != last.tv_nsec) << i;
    last = time;
  }
}

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

// --- options

TEST(TcpCalls, AnOptionIsCutToTheRoomThatThereIs) {
  const Pair pair;
  set(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, 0);
  for (socklen_t room = 0; room <= 4; ++room) {
    unsigned char value[8];
    std::memset(value, 0xee, sizeof value);
    socklen_t size = room;
    EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, value, &size), 0);
    EXPECT_EQ(size, room);
    for (socklen_t i = 0; i < sizeof value; ++i) EXPECT_EQ(value[i], i < room ? 0 : 0xee);
  }
  auto negative = static_cast<socklen_t>(-1);
  int value = 0;
  EXPECT_EQ(::getsockopt(pair.client.get(), IPPROTO_TCP, TCP_NODELAY, &value, &negative), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST(TcpCalls, WhatIsCorkedIsTheKernelsToHoldBack) {
  const Pair pair;
  const std::uint64_t before = sent_by_kernel(pair.client.get());
  set(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
  EXPECT_EQ(send(pair.client.get(), "head"), "4");
  EXPECT_EQ(send(pair.client.get(), "body"), "4");
  set(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
  EXPECT_EQ(receive_exactly(pair.server.get(), 8), "headbody");
  EXPECT_GE(sent_by_kernel(pair.client.get()), before + 8);
  pair.talk(20);
}

TEST(TcpCalls, ACorkThatWasThereFirstHoldsBackToo) {
  const Pair pair(false);
  set(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(send(pair.client.get(), "ping"), "4");
    // Taking the cork out pushes.
    set(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
    set(pair.client.get(), IPPROTO_TCP, TCP_CORK, 1);
    EXPECT_EQ(receive(pair.server.get()), "ping");
    EXPECT_EQ(send(pair.server.get(), "pong"), "4");
    EXPECT_EQ(receive(pair.client.get()), "pong");
  }
  const std::uint64_t before = sent_by_kernel(pair.client.get());
  EXPECT_EQ(send(pair.client.get(), "held"), "4");
  set(pair.client.get(), IPPROTO_TCP, TCP_CORK, 0);
  EXPECT_EQ(receive(pair.server.get()), "held");
  EXPECT_GE(sent_by_kernel(pair.client.get()), before + 4);
}

// A reader that is now asleep in the kernel and now awake: what it gets while asleep with MSG_MORE
// must not lie in the kernel when what follows it goes another way.
TEST(TcpCalls, NothingWaitsInTheKernelBehindWhatWasSentWithMore) {
  const Pair pair;
  int wake[2];
  ASSERT_EQ(::pipe2(wake, O_CLOEXEC), 0);
  const UniqueFd wake_read(wake[0]);
  const UniqueFd wake_write(wake[1]);
  std::atomic<int> woken{0};
  std::atomic<std::size_t> got{0};
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done) {
      pollfd both[2] = {{pair.server.get(), POLLIN, 0}, {wake[0], POLLIN, 0}};
      ::poll(both, 2, -1);
      char bytes[256];
      if (both[1].revents != 0) {
        if (::read(wake[0], bytes, 1) == 1) ++woken;
        // Not before the other end has sent what follows.
        while (!done && got < 0x10000 && woken % 2 == 1) std::this_thread::yield();
      }
      const ssize_t more = ::recv(pair.server.get(), bytes, sizeof bytes, MSG_DONTWAIT);
      if (more > 0) got += static_cast<std::size_t>(more);
    }
  });
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(2ms);  // until it sleeps, most probably
    EXPECT_EQ(send(pair.client.get(), "head", MSG_MORE | MSG_NOSIGNAL), "4");
    ASSERT_EQ(::write(wake[1], "x", 1), 1);
    while (woken % 2 == 0) std::this_thread::yield();
    EXPECT_EQ(send(pair.client.get(), "body"), "4");
    int unsent = -1;
    EXPECT_EQ(::ioctl(pair.client.get(), SIOCOUTQNSD, &unsent), 0);
    EXPECT_EQ(unsent, 0) << "in round " << round;
    ++woken;
    while (got < 8 * (static_cast<std::size_t>(round) + 1)) std::this_thread::yield();
  }
  done = true;
  ASSERT_EQ(::write(wake[1], "x", 1), 1);
  reader.join();
}

TEST(Calls, AFileSentWithMoreToComeDoesNotHoldUpWhatFollows) {
  const Pair pair;
  const UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(send(pair.client.get(), "a"), "1");
  EXPECT_EQ(receive(pair.server.get()), "a");
  EXPECT_EQ(::sendfile(pair.client.get(), file.get(), nullptr, 100), 100);
  EXPECT_EQ(receive_exactly(pair.server.get(), 100).size(), 100u);
  EXPECT_EQ(send(pair.client.get(), "b"), "1");
  EXPECT_EQ(receive(pair.server.get()), "b");
}

// Bytes come out of the stream through this option.
TEST(Calls, AnOptionThatReceivesFindsWhatWasSent) {
  struct ZerocopyReceive {
    std::uint64_t address;
    std::uint32_t length, recv_skip_hint, inq;
    std::int32_t error;
    std::uint64_t copy_address;
    std::int32_t copy_length;
    std::uint32_t flags;
  };
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  std::thread peer([&] { EXPECT_EQ(receive(pair.client.get()), "got it"); });
  char bytes[64] = {};
  ZerocopyReceive request{};
  int result = 0;
  do {
    request = {};
    request.copy_address = reinterpret_cast<std::uint64_t>(bytes);
    request.copy_length = sizeof bytes;
    socklen_t size = sizeof request;
    result = ::getsockopt(pair.server.get(), IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &request, &size);
  } while (result == 0 && request.copy_length == 0);
  const std::string failed = result == 0 ? "" : errno_name();
  EXPECT_EQ(send(pair.server.get(), "got it"), "6");
  peer.join();
  if (result != 0) GTEST_SKIP() << "the kernel does not receive by an option: " << failed;
  EXPECT_STREQ(bytes, "hello");
}

TEST(Calls, AStreamThatBecomesAnotherProtocolIsNeverAccelerated) {
  const Pair pair(false);
  pair.talk(2);
  // Whether or not this kernel has it: the program may go on to something that it has.
  (void)::setsockopt(pair.client.get(), IPPROTO_TCP, TCP_ULP, "tls", 3);
  const int before = stream_mappings();
  pair.talk(40);
  EXPECT_EQ(stream_mappings(), before);
}

// --- flags

TEST(TcpCalls, PeekingAtAllWaitsForAll) {
  const Pair pair;
  EXPECT_EQ(send(pair.client.get(), "ab"), "2");
  EXPECT_EQ(receive(pair.server.get(), 2, MSG_PEEK), "ab");
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    EXPECT_EQ(send(pair.client.get(), "cd"), "2");
  });
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL), "abcd");
  later.join();
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL), "abcd");
  EXPECT_EQ(receive(pair.server.get(), 4), "abcd");
  pair.talk(20);
}

TEST(Calls, PeekingAtAllEndsWithTheStream) {
  Pair pair;
  EXPECT_EQ(send(pair.client.get(), "ab"), "2");
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL | MSG_DONTWAIT), "ab");
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get(), 4, MSG_PEEK | MSG_WAITALL), "ab");
  EXPECT_EQ(receive(pair.server.get()), "ab");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(TcpCalls, WhatIsThrownAwayGoesNowhere) {
  const Pair pair;
  const auto thrown_away = [&](std::size_t size, int flags) {
    return ::recv(pair.server.get(), nullptr, size, MSG_TRUNC | flags);
  };
  EXPECT_EQ(send(pair.client.get(), "hello world"), "11");
  EXPECT_EQ(thrown_away(100, MSG_PEEK), 11);
  EXPECT_EQ(thrown_away(6, 0), 6);
  EXPECT_EQ(receive(pair.server.get()), "world");
  EXPECT_EQ(thrown_away(1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(send(pair.client.get(), std::string(10'000, 'x')), "10000");
  EXPECT_EQ(thrown_away(20'000, MSG_PEEK), 10'000);
  EXPECT_EQ(thrown_away(9'000, MSG_WAITALL), 9'000);
  EXPECT_EQ(receive(pair.server.get()).size(), 1'000u);
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(send(pair.client.get(), "two"), "3");
  });
  EXPECT_EQ(send(pair.client.get(), "one"), "3");
  EXPECT_EQ(thrown_away(6, MSG_WAITALL), 6);
  later.join();
  pair.talk(5);
}

TEST(Calls, AnUrgentByteMayComeAtAnyTime) {
  for (int first = 0; first < 12; ++first) {
    const Pair pair(false);
    pair.talk(first);
    const int sender = first % 2 == 0 ? pair.server.get() : pair.client.get();
    EXPECT_EQ(send(sender, "!", MSG_OOB), "1");
    for (int i = 0; i < 40; ++i) {
      const std::string text = "text" + std::to_string(i);
      EXPECT_EQ(send(pair.client.get(), text), std::to_string(text.size()));
      ASSERT_EQ(receive_exactly(pair.server.get(), text.size()), text) << first;
      EXPECT_EQ(send(pair.server.get(), text), std::to_string(text.size()));
      ASSERT_EQ(receive_exactly(pair.client.get(), text.size()), text) << first;
    }
  }
}

// --- calls by number

TEST(Calls, SendingByNumberKeepsTheOrder) {
  const Pair pair;
  std::string expected;
  for (int i = 0; i < 10; ++i) {
    const auto next = [&] {
      static thread_local std::string text;
      text = "<" + std::to_string(expected.size()) + ">";
      expected += text;
      return iovec{.iov_base = text.data(), .iov_len = text.size()};
    };
    iovec part = next();
    ASSERT_EQ(send(pair.client.get(), std::string(static_cast<char*>(part.iov_base), part.iov_len)),
              std::to_string(part.iov_len));
    part = next();
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    ASSERT_EQ(::syscall(SYS_sendmmsg, pair.client.get(), &message, 1, 0), 1);
    part = next();
    ASSERT_GT(::syscall(SYS_pwritev2, pair.client.get(), &part, 1, -1L, -1L, 0), 0);
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd out(ends[0]);
    const UniqueFd in(ends[1]);
    part = next();
    ASSERT_EQ(::write(in.get(), part.iov_base, part.iov_len), static_cast<ssize_t>(part.iov_len));
    ASSERT_GT(::syscall(SYS_splice, out.get(), nullptr, pair.client.get(), nullptr, 100, 0), 0);
  }
  EXPECT_EQ(receive_exactly(pair.server.get(), expected.size()), expected);
}

TEST(Calls, WaitingByNumberIsTold) {
  const Pair pair;
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.fd = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  timespec long_enough{.tv_sec = 20, .tv_nsec = 0};
  const int fd = pair.server.get();
  const std::function<long()> ways[] = {
      [&] {
        pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
        return ::syscall(SYS_ppoll, &wait, 1, &long_enough, nullptr, 8);
      },
      [&] {
        fd_set wait;
        FD_ZERO(&wait);
        FD_SET(fd, &wait);
        return ::syscall(SYS_pselect6, fd + 1, &wait, nullptr, nullptr, &long_enough, nullptr);
      },
      [&] { return ::syscall(SYS_epoll_pwait, set.get(), &event, 1, 20'000, nullptr, 8); },
  };
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    ASSERT_EQ(ways[i % 3](), 1) << i % 3;
    EXPECT_EQ(receive(fd), "x");
    // Now it is awake.
    EXPECT_EQ(receive(fd, 1, MSG_DONTWAIT), "(EAGAIN)");
  }
}

// --- ending

TEST(TcpCalls, LingeringForNoTimeResetsBehindTheBytes) {
  for (const bool with_bytes : {false, true}) {
    Pair pair;
    const linger now{.l_onoff = 1, .l_linger = 0};
    ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    if (with_bytes) {
      EXPECT_EQ(send(pair.client.get(), "last"), "4");
    }
    pair.client.reset();
    if (with_bytes) {
      EXPECT_EQ(receive(pair.server.get()), "last");
    }
    EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
    EXPECT_EQ(receive(pair.server.get()), "(end)");
    EXPECT_EQ(send(pair.server.get(), "x"), "(EPIPE)");
  }
}

// The sender is in the middle of publishing when the receiver leaves.
TEST(Calls, LeavingLosesNothingWhileThePeerSends) {
  for (unsigned round = 0; round < 60; ++round) {
    const Pair pair;
    const auto byte = [](unsigned at) { return static_cast<char>((at * 2654435761U) >> 21); };
    constexpr unsigned kAll = 60'000;
    std::thread sender([&] {
      std::string text;
      for (unsigned at = 0, size = 1; at < kAll; at += size, size = size * 7 % 3001 + 1) {
        text.clear();
        for (unsigned i = 0; i < size; ++i) text += byte(at + i);
        if (send(pair.client.get(), text) != std::to_string(size)) break;
      }
      ::shutdown(pair.client.get(), SHUT_WR);
    });
    unsigned at = 0;
    bool left = false;
    for (std::string text; (text = receive(pair.server.get(), 1000)) != "(end)";) {
      for (const char one : text) ASSERT_EQ(one, byte(at++)) << at << " " << text.substr(0, 20);
      if (left || at < 2000 + round * 300) continue;
      left = true;
      FILE* const stream = ::fdopen(::dup(pair.server.get()), "r");
      ASSERT_NE(stream, nullptr);
      ::fclose(stream);
    }
    sender.join();
    EXPECT_GE(at, kAll);
  }
}

// A call that returns bytes cannot tell of the reset behind them: the next one does.
TEST(TcpCalls, AResetBehindBytesIsToldByTheNextCall) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  using Receive = std::function<ssize_t(int)>;
  char bytes[10'000];
  const Receive ways[] = {
      [&](int fd) { return ::recv(fd, bytes, sizeof bytes, MSG_WAITALL); },
      [&](int fd) { return ::recv(fd, nullptr, sizeof bytes, MSG_TRUNC | MSG_WAITALL); },
      [&](int fd) { return ::recv(fd, nullptr, sizeof bytes, MSG_TRUNC); },
      [&](int fd) { return ::splice(fd, nullptr, in.get(), nullptr, sizeof bytes, 0); },
  };
  for (std::size_t i = 0; i < std::size(ways); ++i) {
    SCOPED_TRACE(i);
    Pair pair;
    const linger now{.l_onoff = 1, .l_linger = 0};
    ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    EXPECT_EQ(send(pair.client.get(), "last"), "4");
    pair.client.reset();
    EXPECT_EQ(ways[i](pair.server.get()), 4);
    EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
    EXPECT_EQ(receive(pair.server.get()), "(end)");
  }
}

TEST(TcpCalls, AResetDuringAWaitForAllIsToldByTheNextCall) {
  Pair pair;
  const linger now{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  EXPECT_EQ(send(pair.client.get(), "last"), "4");
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    pair.client.reset();
  });
  EXPECT_EQ(receive(pair.server.get(), 100, MSG_WAITALL), "last");
  later.join();
  EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

// Also where the peer could not say before that it would end.
TEST(Calls, TheEndIsToldAsOftenAsItIsAskedFor) {
  const Pair pair;
  pollfd wait{.fd = pair.server.get(), .events = POLLIN, .revents = 0};
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(send(pair.client.get(), "ping"), "4");
    ASSERT_EQ(::poll(&wait, 1, -1), 1);
    EXPECT_EQ(receive(pair.server.get(), 100, MSG_DONTWAIT), "ping");
  }
  ASSERT_EQ(kernel(SYS_shutdown, pair.client.get(), SHUT_WR), 0);
  ASSERT_EQ(::poll(&wait, 1, -1), 1);
  while (receive(pair.server.get(), 1, MSG_DONTWAIT) == "(EAGAIN)") {
  }
  for (int i = 0; i < 100; ++i) ASSERT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(end)");
}

TEST(Calls, WhoReadsNoMoreReadsTheEnd) {
  const Pair pair;
  EXPECT_EQ(send(pair.server.get(), "unread"), "6");
  ASSERT_EQ(::shutdown(pair.server.get(), SHUT_RD), 0);
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  EXPECT_EQ(receive(pair.client.get()), "unread");
}

// --- splice

TEST(Calls, SplicingDoesNotWaitForRoomWhereItMayNot) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  std::string text;
  for (int i = 0; i < 200'000; ++i) text += static_cast<char>('a' + i % 23);
  ASSERT_EQ(::fcntl(pair.client.get(), F_SETFL, O_NONBLOCK), 0);
  ASSERT_EQ(::fcntl(pair.server.get(), F_SETFL, O_NONBLOCK), 0);
  std::string got;
  std::size_t sent = 0;
  while (got.size() < text.size()) {
    const ssize_t more = ::send(pair.client.get(), text.data() + sent, text.size() - sent, 0);
    if (more > 0) sent += static_cast<std::size_t>(more);
    ssize_t moved;
    // Until there is nothing, or no room.
    while ((moved = ::splice(pair.server.get(), nullptr, in.get(), nullptr, 1 << 20,
                             SPLICE_F_MOVE | SPLICE_F_NONBLOCK)) > 0) {
    }
    ASSERT_EQ(moved, -1);
    ASSERT_EQ(errno, EAGAIN);
    int there = 0;
    ASSERT_EQ(::ioctl(out.get(), FIONREAD, &there), 0);
    std::string part(static_cast<std::size_t>(there), '\0');
    if (there != 0) {
      ASSERT_EQ(::read(out.get(), part.data(), part.size()), there);
    }
    got += part;
  }
  EXPECT_EQ(got, text);
}

TEST(Calls, SplicingWaitsForBytesAndTellsTheEnd) {
  Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const auto splice = [&](std::size_t size) {
    return ::splice(pair.server.get(), nullptr, in.get(), nullptr, size, 0);
  };
  std::thread later([&] {
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  });
  EXPECT_EQ(splice(100), 5);
  later.join();
  char bytes[16];
  EXPECT_EQ(::read(out.get(), bytes, sizeof bytes), 5);
  pair.talk(5);
  EXPECT_EQ(send(pair.client.get(), "last"), "4");
  EXPECT_EQ(splice(2), 2);
  off64_t offset = 0;
  EXPECT_EQ(::splice(pair.server.get(), &offset, in.get(), nullptr, 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(::splice(pair.server.get(), nullptr, pair.server.get(), nullptr, 1, 0), -1);
  EXPECT_EQ(errno, EINVAL);
  pair.client.reset();
  EXPECT_EQ(splice(100), 2);
  EXPECT_EQ(splice(100), 0);
  EXPECT_EQ(::read(out.get(), bytes, sizeof bytes), 4);
}

TEST(Calls, SplicingIntoAPipeWithoutReaderBreaksIt) {
  const Pair pair;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  UniqueFd out(ends[0]);
  const UniqueFd in(ends[1]);
  EXPECT_EQ(send(pair.client.get(), "hello"), "5");
  out.reset();
  ASSERT_NE(::signal(SIGPIPE, SIG_IGN), SIG_ERR);
  EXPECT_EQ(::splice(pair.server.get(), nullptr, in.get(), nullptr, 5, 0), -1);
  EXPECT_EQ(errno, EPIPE);
  ::signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(receive(pair.server.get()), "hello");
}

// --- what it costs not to be accelerated

// System calls of `work`, in a child that its parent looks at; -1 if it may not.
template <class Work>
int count_system_calls(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(99);
    ::raise(SIGSTOP);
    kernel(SYS_getppid, 0, 0, 0);
    work();
    kernel(SYS_getppid, 0, 0, 0);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFSTOPPED(status)) return -1;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD);
  int count = 0;
  int marks = 0;
  while (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0 &&
         ::waitpid(child, &status, 0) == child && WIFSTOPPED(status)) {
    __ptrace_syscall_info info{};
    const auto size = reinterpret_cast<void*>(sizeof info);
    if (WSTOPSIG(status) != (SIGTRAP | 0x80) ||
        ::ptrace(PTRACE_GET_SYSCALL_INFO, child, size, &info) <= 0 ||
        info.op != PTRACE_SYSCALL_INFO_ENTRY)
      continue;
    if (info.entry.nr == SYS_getppid)
      ++marks;
    else if (marks == 1)
      ++count;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return count;
}

TEST(Calls, APlainPeerCostsFewSystemCalls) {
  for (const bool connects : {true, false}) {
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    const int count = count_system_calls([&] {
      // One end goes round the library.
      long fds[2];
      if (connects) {
        fds[0] = ::socket(stream_family(), SOCK_STREAM, 0);
        EXPECT_EQ(::connect(static_cast<int>(fds[0]), address.get(), address.size), 0);
        fds[1] = kernel(SYS_accept4, listener.get(), 0, 0);
      } else {
        fds[1] = kernel(SYS_socket, stream_family(), SOCK_STREAM, 0);
        EXPECT_EQ(kernel(SYS_connect, fds[1], reinterpret_cast<long>(address.get()), address.size),
                  0);
        fds[0] = ::accept(listener.get(), nullptr, nullptr);
      }
      char byte = 'x';
      const auto address_of_byte = reinterpret_cast<long>(&byte);
      for (int i = 0; i < 10; ++i) {
        EXPECT_EQ(kernel(SYS_write, fds[1], address_of_byte, 1), 1);
        EXPECT_EQ(::recv(static_cast<int>(fds[0]), &byte, 1, 0), 1);
        EXPECT_EQ(::send(static_cast<int>(fds[0]), &byte, 1, 0), 1);
        EXPECT_EQ(kernel(SYS_read, fds[1], address_of_byte, 1), 1);
      }
      ::close(static_cast<int>(fds[0]));
      kernel(SYS_close, fds[1], 0, 0);
    });
    if (count < 0) GTEST_SKIP() << "a process may not look at its child";
    constexpr int kOwn = 45;
    EXPECT_GE(count, kOwn);
    // Four of them make the table in which all connections of the process are counted, two tell
    // what this one is called and which socket stays with the kernel.
    EXPECT_LE(count, kOwn + (preloaded() ? 26 : 0)) << (connects ? "connects" : "accepts");
  }
}

// --- ways on which bytes leave the library

TEST(Calls, AsynchronousReadsAndWritesAreServed) {
  const Pair pair;
  std::thread peer([&] {
    EXPECT_EQ(send(pair.client.get(), "hello"), "5");
    EXPECT_EQ(receive(pair.client.get()), "answer");
    EXPECT_EQ(send(pair.client.get(), "listed"), "6");
    EXPECT_EQ(receive(pair.client.get()), "(end)");
  });
  char bytes[16] = {};
  aiocb request{};
  const aiocb* const list[] = {&request};
  const auto wait = [&]() -> ssize_t {
    const timespec long_enough{.tv_sec = 20, .tv_nsec = 0};
    return ::aio_suspend(list, 1, &long_enough) == 0 ? ::aio_return(&request) : -1;
  };
  const auto ask = [&](char* buffer, std::size_t size) {
    request = {};
    request.aio_fildes = pair.server.get();
    request.aio_buf = buffer;
    request.aio_nbytes = size;
  };
  ask(bytes, sizeof bytes);
  ASSERT_EQ(::aio_read(&request), 0);
  EXPECT_EQ(wait(), 5);
  EXPECT_STREQ(bytes, "hello");
  char answer[] = "answer";
  ask(answer, 6);
  ASSERT_EQ(::aio_write(&request), 0);
  EXPECT_EQ(wait(), 6);
  ask(bytes, sizeof bytes);
  request.aio_lio_opcode = LIO_READ;
  aiocb* const all[] = {&request};
  ASSERT_EQ(::lio_listio(LIO_WAIT, all, 1, nullptr), 0);
  EXPECT_EQ(::aio_return(&request), 6);
  ::shutdown(pair.server.get(), SHUT_WR);
  peer.join();
}

TEST(Calls, ANumberThatAStreamHadIsAnyFilesAfterwards) {
  for (const bool of_udp : {true, false}) {
    Pair pair;
    UniqueFd udp = udp_socket();
    UniqueFd& fd = of_udp ? udp : pair.server;
    const int number = fd.get();
    FILE* const stream = ::fdopen(fd.release(), "w");
    ASSERT_NE(stream, nullptr);
    ASSERT_EQ(::fclose(stream), 0);
    const UniqueFd file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
    ASSERT_EQ(file.get(), number) << "the lowest that is free";
    char byte = 0;
    EXPECT_EQ(::read(file.get(), &byte, 1), 1) << errno_name();
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    EXPECT_TRUE(S_ISREG(status.st_mode));
  }
}

TEST(Calls, AStreamMadeOfASocketSpeaksToItsPeer) {
  const Pair pair;
  FILE* const stream = ::fdopen(::dup(pair.server.get()), "r+");
  ASSERT_NE(stream, nullptr);
  std::thread peer([&] {
    EXPECT_EQ(send(pair.client.get(), "question\n"), "9");
    EXPECT_EQ(receive_exactly(pair.client.get(), 7), "answer\n");
  });
  char line[32] = {};
  EXPECT_NE(::fgets(line, sizeof line, stream), nullptr);
  EXPECT_STREQ(line, "question\n");
  EXPECT_GE(::fputs("answer\n", stream), 0);
  EXPECT_EQ(::fflush(stream), 0);
  peer.join();
  ::fclose(stream);
}

// --- other processes

// Answers until the end; after 40 answers it says so.
int answer(int fd, int say) {
  char bytes[16];
  ssize_t got;
  for (int i = 0; (got = ::recv(fd, bytes, sizeof bytes, 0)) > 0; ++i) {
    ::send(fd, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL);
    if (i == 40 && ::write(say, "x", 1) != 1) return 4;
  }
  return got == 0 ? 0 : 1;
}

// A server whose copy, made by `make`, answers, while the server itself closes the connection.
template <class Make>
pid_t serve_by_copy(int listener, Make make) {
  const pid_t server = ::fork();
  if (server != 0) return server;
  ::alarm(60);
  int ends[2];
  const int fd = ::accept(listener, nullptr, nullptr);
  if (fd < 0 || ::pipe(ends) != 0) ::_exit(2);
  const long copy = make();
  if (copy == 0) {
    ::alarm(60);
    ::_exit(answer(fd, ends[1]));
  }
  char byte;
  int status = 0;
  if (::read(ends[0], &byte, 1) != 1 || ::close(fd) != 0 ||
      ::waitpid(static_cast<pid_t>(copy), &status, 0) != copy)
    ::_exit(2);
  ::_exit(status == 0 ? 0 : 3);
}

void expect_answers(int fd, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    ASSERT_EQ(send(fd, "ping"), "4");
    ASSERT_EQ(receive_exactly(fd, 4), "ping") << "in round " << i;
  }
}

TEST(Calls, ACopyOfAProcessMayBeMadeInAnyWay) {
  struct CloneArguments {
    std::uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
  };
  const std::function<long()> ways[] = {
      [] { return ::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0); },
      [] {
        CloneArguments arguments{};
        arguments.exit_signal = SIGCHLD;
        return ::syscall(SYS_clone3, &arguments, sizeof arguments);
      },
      [] { return static_cast<long>(::_Fork()); },
      [] { return kernel(SYS_clone, SIGCHLD, 0, 0, 0); },
  };
  for (const auto& way : ways) {
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    const pid_t server = serve_by_copy(listener.get(), way);
    UniqueFd client = connect_to(address);
    expect_answers(client.get(), 200);
    client.reset();
    EXPECT_EQ(exit_status(server), 0) << "way " << &way - ways;
  }
}

int answer_in_clone(void* fd) { return answer(*static_cast<int*>(fd), STDOUT_FILENO); }

TEST(Calls, ACloneOnAStackOfItsOwnGoesOnWithAConnection) {
  const Pair pair;
  static std::vector<char> stack(256 * 1024);
  int fd = pair.server.get();
  const int copy = ::clone(answer_in_clone, stack.data() + stack.size(), SIGCHLD, &fd);
  ASSERT_GT(copy, 0);
  expect_answers(pair.client.get(), 30);
  ::shutdown(pair.client.get(), SHUT_WR);
  EXPECT_EQ(exit_status(copy), 0);
}

// --- giving up rights

TEST(TcpCalls, WhoBecomesSomebodyElseLeavesWhatItHasAndBeginsAnew) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes somebody else";
  const std::function<int()> ways[] = {
      [] { return ::setgid(4711); },
      [] { return ::setegid(4711); },
      [] { return ::setuid(4711); },
      [] { return ::seteuid(4711); },
      [] { return ::setresuid(4711, 4711, 4711); },
      [] { return ::setreuid(4711, 4711); },
      [] { return static_cast<int>(::syscall(SYS_setresuid, 4711, 4711, 4711)); },
      [] { return ::chroot("/"); },
      [] { return ::unshare(CLONE_NEWNS); },
  };
  for (const auto& way : ways)
    EXPECT_EQ(exit_status(in_child([&] {
                const Pair pair;
                if (way() != 0) return;  // not everything may be done everywhere
                const std::uint64_t before = sent_by_kernel(pair.client.get());
                EXPECT_EQ(send(pair.client.get(), "by the kernel"), "13");
                EXPECT_EQ(receive(pair.server.get()), "by the kernel");
                // Also again, where the acknowledgement comes late.
                EXPECT_GE(sent_by_kernel(pair.client.get()), before + 13);
                const Pair later;  // asserts that it is accelerated
              })),
              0)
        << "way " << &way - ways;
}

TEST(TcpCalls, WhoStaysTheSameKeepsWhatItHas) {
  EXPECT_EQ(exit_status(in_child([] {
              const Pair pair;
              ASSERT_EQ(::setresuid(::getuid(), ::geteuid(), static_cast<uid_t>(-1)), 0);
              ASSERT_EQ(::setegid(::getegid()), 0);
              // Ends that wait for each other.
              constexpr int kRounds = 200;
              std::thread echo([&] {
                char bytes[4];
                for (int i = 0; i < kRounds; ++i) {
                  EXPECT_EQ(::recv(pair.server.get(), bytes, 4, MSG_WAITALL), 4);
                  EXPECT_EQ(::send(pair.server.get(), bytes, 4, 0), 4);
                }
              });
              const std::uint64_t before = sent_by_kernel(pair.client.get());
              char bytes[4];
              for (int i = 0; i < kRounds; ++i) {
                EXPECT_EQ(::send(pair.client.get(), "ping", 4, 0), 4);
                EXPECT_EQ(::recv(pair.client.get(), bytes, 4, MSG_WAITALL), 4);
              }
              echo.join();
              // On a busy machine each of them may have found its reader asleep, to whom the kernel
              // brings it: then these, of which only the end is waited for, go by memory.
              const auto kept = [&] {
                const std::uint64_t now = sent_by_kernel(pair.client.get());
                pair.put("ping");
                EXPECT_EQ(receive(pair.server.get()), "ping");
                return sent_by_kernel(pair.client.get()) == now;
              };
              if (preloaded() && sent_by_kernel(pair.client.get()) - before >= 4 * kRounds) {
                EXPECT_EQ(stream_mappings(), 2);
                bool any = false;
                for (int i = 0; i < 10'000 && !any; ++i) any = kept();
                EXPECT_TRUE(any);
              }
            })),
            0);
}

// After the connection has been used `rounds` times the server allows itself to read, write and
// end, and is killed for anything else.
void confine_after(int rounds, const std::function<void()>& confine_itself) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const pid_t server = ::fork();
  if (server == 0) {
    ::alarm(60);
    const int fd = ::accept(listener.get(), nullptr, nullptr);
    char bytes[16];
    for (int i = 0;; ++i) {
      if (i == rounds) confine_itself();
      const ssize_t got = ::read(fd, bytes, sizeof bytes);
      if (got <= 0) kernel(SYS_exit, got == 0 ? 0 : 1, 0, 0);
      if (::write(fd, bytes, static_cast<std::size_t>(got)) != got) kernel(SYS_exit, 2, 0, 0);
    }
  }
  UniqueFd client = connect_to(address);
  expect_answers(client.get(), 100);
  client.reset();
  EXPECT_EQ(exit_status(server), 0) << "confined after " << rounds;
}

TEST(Calls, WhoMayOnlyReadAndWriteStillReadsAndWrites) {
  for (const int rounds : {0, 2, 50})
    confine_after(rounds, [] { ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); });
}

// Kills this process at its first call that is none of these.
void allow_only(const std::vector<long>& calls, bool by_number = false) {
  std::vector<sock_filter> steps{{BPF_LD | BPF_W | BPF_ABS, 0, 0, 0}};
  for (const long call : calls) {
    steps.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, 1, static_cast<std::uint32_t>(call)});
    steps.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW});
  }
  steps.push_back({BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS});
  const sock_fprog program{.len = static_cast<unsigned short>(steps.size()),
                           .filter = steps.data()};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (by_number)
    ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
  else
    ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
  std::vector<sock_filter>().swap(steps);
}

TEST(Calls, WhoFiltersItsCallsMakesNoneThatItDidNotMakeBefore) {
  for (const bool by_number : {false, true})
    for (const int rounds : {0, 2, 50})
      confine_after(rounds, [=] {
        // Memory is given back when the filter is there.
        allow_only({SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_munmap, SYS_brk}, by_number);
      });
}

TEST(Calls, WhoFiltersItsCallsWaitsClosesAndEnds) {
  const Pair pair;
  std::vector<long> calls = {SYS_epoll_ctl, SYS_epoll_pwait, SYS_close,  SYS_dup, SYS_socket,
                             SYS_write,     SYS_exit_group,  SYS_munmap, SYS_brk};
#ifdef SYS_epoll_wait
  calls.push_back(SYS_epoll_wait);
#endif
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd confined(ends[0]);
  const UniqueFd say_confined(ends[1]);
  const pid_t child = in_child([&] {
    const int set = ::epoll_create1(EPOLL_CLOEXEC);
    const int later = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {.fd = pair.server.get()}};
    ::epoll_ctl(set, EPOLL_CTL_ADD, pair.server.get(), &event);
    allow_only(calls);
    const bool said = ::write(say_confined.get(), "x", 1) == 1;
    const bool told = ::epoll_wait(set, &event, 1, 20'000) == 1;
    ::epoll_ctl(later, EPOLL_CTL_ADD, pair.server.get(), &event);
    const bool told_again = ::epoll_wait(later, &event, 1, 20'000) == 1;
    ::close(::dup(pair.server.get()));
    ::close(::socket(AF_INET, SOCK_DGRAM, 0));
    ::close(pair.server.get());
    ::close(set);
    ::_exit(said && told && told_again ? 0 : 5);
  });
  char byte;
  EXPECT_EQ(::read(confined.get(), &byte, 1), 1);
  EXPECT_EQ(send(pair.client.get(), "x"), "1");
  EXPECT_EQ(exit_status(child), 0);
  EXPECT_EQ(receive(pair.server.get()), "x");
  pair.talk(5);
}

// --- other programs

// Executes this program again as `role`, see kRole. Returns how it ended, and what it said.
struct Ended {
  int status;
  std::string said;
};

Ended execute_as(const std::string& role, std::vector<std::string> variables) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::dup2(in.get(), STDERR_FILENO);
    ::setenv("CALLS_TEST_ROLE", role.c_str(), 1);
    for (std::string& variable : variables) ::putenv(variable.data());
    char program[] = "/proc/self/exe";
    char option[] = "--unix";
    char* const arguments[] = {program, over_unix() ? option : nullptr, nullptr};
    ::execv(program, arguments);
    ::_exit(127);
  }
  in.reset();
  Ended ended{};
  char bytes[512];
  ssize_t got;
  while ((got = ::read(out.get(), bytes, sizeof bytes)) > 0)
    ended.said.append(bytes, static_cast<std::size_t>(got));
  ended.status = exit_status(child);
  return ended;
}

// What the other library has been asked for, see other_library.cpp.
int asked_of_other() {
  auto* const asked = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "other_library_asked"));
  return asked == nullptr ? -1 : asked();
}

int as_counter_of_mappings() {
  const Pair pair(false);
  const int before = stream_mappings();
  pair.talk(20);
  return stream_mappings() - before;
}

int as_one_with_another_library() {
  {
    Pair pair(false);
    char value[4];
    socklen_t size = sizeof value;
    ::getsockopt(pair.client.get(), SOL_SOCKET, SO_TYPE, value, &size);
    set(pair.client.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    ::fcntl(pair.client.get(), F_GETFL);
    int bytes = 0;
    ::ioctl(pair.client.get(), FIONREAD, &bytes);
    const UniqueFd copy(::dup(pair.client.get()));
    ::dup2(pair.client.get(), copy.get());
    ::dup3(pair.client.get(), copy.get(), O_CLOEXEC);
    ::shutdown(pair.client.get(), SHUT_WR);
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{};
    ::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.client.get(), &event);
  }
  return asked_of_other();
}

// Standard error becomes a file of the program, into which nobody else may write.
int as_one_whose_number_two_is_a_file() {
  const int file = ::memfd_create("data", 0);
  if (::dup2(file, STDERR_FILENO) != STDERR_FILENO) return 100;
  {
    Pair pair(false);
    pair.talk(20);
  }
  struct stat status {};
  return ::fstat(STDERR_FILENO, &status) != 0 ? 101 : status.st_size == 0 ? 0 : 102;
}

// --- a visitor who knows all that is public of a connection, and leaves memory of its own

std::uint64_t cookie_of(int fd) {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size), 0);
  return cookie;
}

// The name at which the library of `client` listens, of those in /proc/net/unix; empty: none.
std::string meeting_name_of(int client) {
  char wanted[64];
  if (over_unix()) {
    struct stat status {};
    EXPECT_EQ(::fstat(client, &status), 0);
    std::snprintf(wanted, sizeof wanted, "@farcall/unix/%016lx", status.st_ino);
  } else {
    sockaddr_in own{};
    socklen_t size = sizeof own;
    EXPECT_EQ(::getsockname(client, reinterpret_cast<sockaddr*>(&own), &size), 0);
    std::snprintf(wanted, sizeof wanted, "@farcall/tcp/00000000000000000000ffff7f000001%04x",
                  ntohs(own.sin_port));
  }
  std::ifstream names("/proc/net/unix");
  for (std::string line; std::getline(names, line);)
    if (const std::size_t at = line.find(wanted); at != std::string::npos)
      return line.substr(at + 1);
  return {};
}

void leave_memory(const std::string& name, int connector, int acceptor, std::uint64_t bytes) {
  constexpr std::size_t kRing = 65'536;
  constexpr std::size_t kDirection = 2048;
  constexpr std::size_t kSize = 2 * (kDirection + kRing);
  const UniqueFd memory(::memfd_create("visitor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(memory.get(), kSize), 0);
  for (const std::size_t direction : {std::size_t{0}, kDirection})
    for (const std::size_t word : {144U, 264U})  // bytes taken, bytes sent
      ASSERT_EQ(::pwrite(memory.get(), &bytes, sizeof bytes, static_cast<off_t>(direction + word)),
                8);
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  const UniqueFd visitor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  ASSERT_EQ(::connect(visitor.get(), reinterpret_cast<sockaddr*>(&address),
                      static_cast<socklen_t>(sizeof(sa_family_t) + 1 + name.size())),
            0)
      << std::strerror(errno);
  std::uint64_t hello[] = {0x33504354'4C4C4143, cookie_of(acceptor), cookie_of(connector), kRing};
  iovec part{.iov_base = hello, .iov_len = sizeof hello};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const head = CMSG_FIRSTHDR(&message);
  *head = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  const int fd = memory.get();
  std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  ASSERT_EQ(::sendmsg(visitor.get(), &message, 0), static_cast<ssize_t>(sizeof hello));
}

// How much memory a connection takes whose other end has no library, when somebody of that user
// comes.
int as_one_with_a_visitor(uid_t user) {
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const UniqueFd client = connect_to(address);
  const UniqueFd server(static_cast<int>(kernel(SYS_accept4, listener.get(), 0, 0, SOCK_CLOEXEC)));
  const auto talk = [&](int rounds) {
    char bytes[4];
    const auto there = reinterpret_cast<long>(&bytes);
    for (int i = 0; i < rounds; ++i) {
      EXPECT_EQ(send(client.get(), "ping"), "4");
      EXPECT_EQ(kernel(SYS_read, server.get(), there, sizeof bytes), 4);
      EXPECT_EQ(kernel(SYS_write, server.get(), there, sizeof bytes), 4);
      EXPECT_EQ(receive(client.get()), "ping");
    }
  };
  constexpr int kRounds = 4;
  talk(kRounds);
  const std::string name = meeting_name_of(client.get());
  if (name.empty()) return 100;
  const pid_t visitor = ::fork();
  if (visitor == 0) {
    if (::setresuid(user, user, user) != 0) ::_exit(1);
    leave_memory(name, client.get(), server.get(), 4 * kRounds);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  if (exit_status(visitor) != 0) return 101;
  // Where these go, if the visitor was believed, nobody reads.
  for (int i = 0; i < 60; ++i) EXPECT_EQ(send(client.get(), "ping"), "4");
  return shared_mappings("visitor");
}

[[gnu::constructor(65535)]] void play_role() {
  const char* const role = std::getenv("CALLS_TEST_ROLE");
  if (role == nullptr) return;
  const std::string name = role;
  int status = 126;
  if (name == "mappings") status = as_counter_of_mappings();
  if (name == "other") status = as_one_with_another_library();
  if (name == "two") status = as_one_whose_number_two_is_a_file();
  if (name == "visited by its user") status = as_one_with_a_visitor(::geteuid());
  if (name == "visited by a stranger") status = as_one_with_a_visitor(4711);
  ::_exit(status);
}

TEST(Calls, ASwitchIsUnderstoodInAnyCase) {
  const int usual = preloaded() ? 2 : 0;
  const std::string variable = over_unix() ? "FARCALL_UNIX=" : "FARCALL_TCP=";
  EXPECT_EQ(execute_as("mappings", {}).status, usual);
  for (const char* const off : {"no", "No", "NO", "0", "off", "Off", "false", "FALSE"})
    EXPECT_EQ(execute_as("mappings", {variable + off}).status, 0) << off;
  for (const char* const on : {"yes", "YES", "1", "On", "True"})
    EXPECT_EQ(execute_as("mappings", {variable + on}).status, usual) << on;
}

TEST(Calls, ABadSwitchIsOneWarningAndTheDefault) {
  const Ended ended = execute_as("mappings", {"FARCALL_TCP=perhaps"});
  EXPECT_EQ(ended.status, preloaded() ? 2 : 0);
  EXPECT_EQ(ended.said, preloaded() ? "farcall: FARCALL_TCP=\"perhaps\" is not yes or no, true or "
                                      "false, on or off, 1 or 0; the default is used\n"
                                    : "");
}

TEST(Calls, NothingIsSaidIntoAFileOfTheProgram) {
  EXPECT_EQ(execute_as("two", {"FARCALL_LOG_LEVEL=debug", "FARCALL_UDP=perhaps"}).status, 0);
}

TEST(Calls, AnotherPreloadedLibraryIsAskedToo) {
  const char* const own = std::getenv("LD_PRELOAD");
  const std::string both =
      std::string("LD_PRELOAD=") + (own == nullptr ? "" : std::string(own) + ":") + OTHER_LIBRARY;
  EXPECT_EQ(execute_as("other", {both}).status, 255) << "a bit for each of its functions";
}

TEST(Calls, MemoryIsTakenOnlyFromTheUserWhoHoldsTheOtherEnd) {
  if (!preloaded()) GTEST_SKIP() << "without the library nothing is taken from anybody";
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes a stranger";
  const std::string anybody = "FARCALL_USERS=any";
  EXPECT_EQ(execute_as("visited by its user", {anybody}).status, 1);
  const Ended stranger = execute_as("visited by a stranger", {anybody});
  EXPECT_EQ(stranger.status, 0) << stranger.said;
}

}  // namespace
}  // namespace farcall::preload
