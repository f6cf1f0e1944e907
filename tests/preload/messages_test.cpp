// SPDX-License-Identifier: Apache-2.0
//
// What recvmsg() and sendmsg() say and take beside the bytes, and several messages in one call.
// These tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "calls.hpp"
#include "farcall/memory.hpp"
#include "several.hpp"
#include "stream_pair.hpp"

#ifndef TCP_INQ
#define TCP_INQ 36
#define TCP_CM_INQ TCP_INQ
#endif

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

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

TEST(Calls, NoMessagesAreWaitedForWhereNoneAreAskedFor) {
  const Pair warm;
  const Pair cold(false);
  const UniqueFd udp = udp_socket();
  for (const int fd : {warm.server.get(), cold.server.get(), udp.get()}) {
    mmsghdr message{};
    timespec minute{.tv_sec = 60, .tv_nsec = 0};
    for (timespec* const limit : {static_cast<timespec*>(nullptr), &minute})
      EXPECT_EQ(::recvmmsg(fd, &message, 0, 0, limit), 0) << errno_name();
    EXPECT_EQ(::sendmmsg(fd, &message, 0, 0), 0) << errno_name();
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

TEST(Calls, SeveralMessagesTellWhatIsLeftOfTheirTimeLimit) {
  for (const bool is_warm : {false, true}) {
    const Pair pair(is_warm);
    pair.put("a");
    expect_the_limit_to_be_told(pair.server.get());
  }
}

TEST(Calls, SeveralMessagesAreNotWaitedForWhereOneIsEnough) {
  for (const bool is_warm : {false, true}) {
    const Pair pair(is_warm);
    pair.put("a");
    Several two(2, 1);
    EXPECT_EQ(two.receive(pair.server.get(), MSG_WAITFORONE), 1);
    EXPECT_EQ(two.text(0), "a");
  }
}

// A peer that closes with something unread resets the connection. What came before is told with
// the number of messages, and the error by the next call.
TEST(Calls, AnErrorBehindSeveralMessagesIsToldByTheNextCall) {
  for (const bool is_warm : {false, true}) {
    for (const unsigned count : {1U, 2U}) {
      Pair pair(is_warm);
      const int fd = pair.server.get();
      for (unsigned i = 0; i < count; ++i) pair.put("one");
      ASSERT_EQ(send(fd, "unread"), "6");
      std::thread later([&, waits = kernel(SYS_gettid)] {
        await_sleep(waits);
        pair.client.reset();
      });
      Several messages(count + 1, 3);
      EXPECT_EQ(messages.receive(fd), static_cast<int>(count));
      later.join();
      for (unsigned i = 0; i < count; ++i) EXPECT_EQ(messages.text(i), "one");
      EXPECT_EQ(receive(fd), "(ECONNRESET)");
      EXPECT_EQ(receive(fd), "(end)");
    }
  }
}

// The kernel tells of an error before it looks for messages.
TEST(Calls, AnErrorIsToldBeforeSeveralMessages) {
  for (const bool is_warm : {false, true}) {
    Pair pair(is_warm);
    const int fd = pair.server.get();
    ASSERT_EQ(send(fd, "unread"), "6");
    pair.put("one");
    pair.client.reset();
    Several messages(2, 3);
    EXPECT_EQ(messages.receive(fd), -1);
    EXPECT_EQ(errno, ECONNRESET);
    EXPECT_EQ(receive(fd), "one");
    EXPECT_EQ(receive(fd), "(end)");
  }
}

TEST(TcpCalls, NoMoreMessagesAreSentThanTheKernelTakes) {
  const Pair pair;
  Several many(1100, 0);
  EXPECT_EQ(many.send(pair.client.get()), 1024);
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

// --- what recvmsg() tells, and sendmsg() takes

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
  set_option(pair.server.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
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
  set_option(pair.server.get(), SOL_SOCKET, SO_TIMESTAMPNS, 1);
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
  set_option(pair.server.get(), IPPROTO_TCP, TCP_INQ, 1);
  expect_to_be_told_what_is_left(pair);
}

TEST(TcpCalls, WhatIsLeftIsToldWhereThatWasAskedForFirst) {
  const Pair pair(false);
  set_option(pair.server.get(), IPPROTO_TCP, TCP_INQ, 1);
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

// --- errors

// Of unix sockets the kernel overlooks the flag.
TEST(Calls, WhoAsksForErrorsTakesNoBytesOfTcp) {
  const UsedPair pair;
  pair.put("there");
  EXPECT_EQ(receive(pair.server.get(), 100, MSG_ERRQUEUE | MSG_DONTWAIT),
            over_unix() ? "there" : "(EAGAIN)");
  EXPECT_EQ(receive(pair.server.get(), 100, MSG_DONTWAIT), over_unix() ? "(EAGAIN)" : "there");
}

}  // namespace
}  // namespace farcall::preload
