// SPDX-License-Identifier: Apache-2.0
//
// The order of datagrams that come by memory and by the kernel, and that none of either kind is
// forgotten. The tests run as those of datagram_contract_test.cpp do.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/udp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "children.hpp"
#include "datagrams.hpp"
#include "harness/ancillary_message.hpp"
#include "steps.hpp"

namespace farcall::preload {
namespace {

// Who is told of an edge reads until there is nothing: of what came before, nobody is told again.
TEST(DatagramOrder, AnEdgeIsFollowedByAllThatTheKernelHas) {
  const Ends two;
  const int fd = two.far.fd.get();
  const Set set(fd, EPOLLIN | EPOLLET);
  (void)set.wait();
  for (int i = 0; i < 300; ++i) {
    two.near.send("x");
    ASSERT_EQ(set.wait(1000), fd);
    ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "x");
    ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
  }
  char text[8];
  for (int i = 0; i < 100; ++i) {
    // As a program that waits by calling again and again.
    for (int k = 0; k < 6; ++k) ASSERT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
    for (int k = 0; k < 3; ++k) two.send_by_kernel("k");
    ASSERT_EQ(set.wait(1000), fd);
    for (int got = 0; got < 3;) {
      if (::recv(fd, text, sizeof text, MSG_DONTWAIT) == 1)
        ++got;
      else  // what comes later is told of
        ASSERT_EQ(set.wait(1000), fd) << i << ", after " << got;
    }
  }
}

// What has woken the set in which it is takes the place of what is there now.
TEST(DatagramOrder, ASetTellsOfTheOneThatTheKernelHas) {
  const Awake two;
  const int fd = two.far.fd.get();
  two.near.send("x");
  const Set inner(fd, EPOLLIN | EPOLLONESHOT);
  const Set outer(inner.set.get(), EPOLLIN);
  EXPECT_EQ(outer.wait(1000), inner.set.get());
  EXPECT_EQ(two.far.receive(), "x");
  two.send_by_kernel("k");
  EXPECT_EQ(inner.wait(), fd);
  EXPECT_EQ(two.far.receive(), "k");
  EXPECT_EQ(inner.wait(), -1);
}

// Some go by the kernel while nobody looks into memory, and those that follow by memory.
void expect_order(const Ends& two) {
  two.warm();
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 2; ++k) (void)two.far.receive(MSG_DONTWAIT);
    for (const char* text : {"1", "2", "3"}) two.near.send(text);
    EXPECT_EQ(poll_once(two.far.fd.get(), 1000), POLLIN);
    std::string all = two.far.receive(MSG_DONTWAIT);
    for (const char* text : {"4", "5"}) two.near.send(text);
    for (int k = 0; k < 4; ++k) {
      EXPECT_EQ(poll_once(two.far.fd.get(), 1000), POLLIN);
      all += two.far.receive(MSG_DONTWAIT);
    }
    ASSERT_EQ(all, "12345");
  }
}

// Whatever has been sent, all of it is read, and some time passes.
void read_all(const Ends& two, int count) {
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(poll_once(two.far.fd.get(), 1000), POLLIN);
    (void)two.far.receive();
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
    ::usleep(15'000);
  }
}

TEST(DatagramOrder, IsKeptAfterAMessageThatTheKernelHasCut) {
  const Awake two;
  const std::vector<char> bytes(4000, 's');
  constexpr std::uint16_t kSize = 1000;
  test::AncillaryMessage message(bytes.data(), bytes.size());
  ASSERT_EQ(message.add(SOL_UDP, UDP_SEGMENT, kSize).send(two.near.fd.get()), 4000);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(two.far.receive().size(), 1000U);
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "(EAGAIN)");
  expect_order(two);
}

TEST(DatagramOrder, IsKeptAfterWhatWasSentPastTheLibrary) {
  const Awake two;
  for (int i = 0; i < 3; ++i)
    ASSERT_EQ(kernel(SYS_sendto, two.near.fd.get(), "p", 1, 0, nullptr, 0), 1);
  read_all(two, 3);
  expect_order(two);
}

TEST(DatagramOrder, IsKeptWhereNoAddressIsNamed) {
  const Awake two;
  sockaddr_in any = *reinterpret_cast<const sockaddr_in*>(&two.far.name);
  any.sin_addr.s_addr = htonl(INADDR_ANY);
  sockaddr_in unspecified = *reinterpret_cast<const sockaddr_in*>(&two.far.name);
  unspecified.sin_family = AF_UNSPEC;
  for (const sockaddr_in& name : {any, unspecified, any})
    ASSERT_EQ(::sendto(two.near.fd.get(), "a", 1, 0, reinterpret_cast<const sockaddr*>(&name),
                       sizeof name),
              1);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(two.far.receive(), "a");
  expect_order(two);
}

// A socket of version 6 that sends to one address in both ways of writing it.
TEST(DatagramOrder, IsKeptWhereAnAddressIsWrittenInTwoWays) {
  if (!Socket("::1", AF_INET6).bound) GTEST_SKIP() << "no ::1 on this machine";
  const Socket six("::ffff:127.0.0.1", AF_INET6);
  const Socket four;
  sockaddr_in6 mapped{};
  mapped.sin6_family = AF_INET6;
  mapped.sin6_port = reinterpret_cast<const sockaddr_in*>(&four.name)->sin_port;
  ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
  const auto send = [&](const char* text, bool as_four) {
    const auto* name = as_four ? reinterpret_cast<const sockaddr*>(&four.name)
                               : reinterpret_cast<const sockaddr*>(&mapped);
    const socklen_t size = as_four ? sizeof(sockaddr_in) : sizeof mapped;
    ASSERT_EQ(::sendto(six.fd.get(), text, 1, 0, name, size), 1);
  };
  for (int i = 0; i < 200; ++i) {
    send("x", i % 4 == 3);
    ASSERT_EQ(poll_once(four.fd.get(), 1000), POLLIN);
    ASSERT_EQ(four.receive(), "x");
  }
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 2; ++k) (void)four.receive(MSG_DONTWAIT);
    for (const char* text : {"1", "2", "3"}) send(text, true);
    ASSERT_EQ(poll_once(four.fd.get(), 1000), POLLIN);
    std::string all = four.receive(MSG_DONTWAIT);
    for (const char* text : {"4", "5"}) send(text, false);
    for (int k = 0; k < 4; ++k) {
      ASSERT_EQ(poll_once(four.fd.get(), 1000), POLLIN);
      all += four.receive(MSG_DONTWAIT);
    }
    ASSERT_EQ(all, "12345");
  }
}

// Two in memory, and one behind them that the kernel has.
void put_three(const Awake& two) {
  two.near.send("1");
  two.near.send("2");
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(two.far.fd.get())) << "not in memory";
  }
  two.send_by_kernel("3");
}

// What a child reads while its parent waits, in the order of numbers.
std::string read_by_child(const Ends& two, int count) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  EXPECT_EQ(outcome_in_child([&] {
              std::string all;
              for (int i = 0; i < count; ++i) {
                if (poll_once(two.far.fd.get(), 10'000) != POLLIN) break;
                all += two.far.receive(MSG_DONTWAIT);
              }
              std::sort(all.begin(), all.end());
              return ::write(write_end.get(), all.data(), all.size()) > 0;
            }),
            0);
  char text[8] = {};
  EXPECT_GT(::read(read_end.get(), text, sizeof text - 1), 0);
  return text;
}

TEST(DatagramOrder, AChildHasWhatIsInFrontOfWhatTheKernelHas) {
  const Awake two;
  put_three(two);
  EXPECT_EQ(read_by_child(two, 3), "123");
}

TEST(DatagramOrder, AChildHasWhatIsBehindWhatTheKernelHas) {
  const Ends two;
  two.warm();
  for (int k = 0; k < 2; ++k) (void)two.far.receive(MSG_DONTWAIT);
  for (const char* text : {"1", "2", "3"}) two.near.send(text);
  EXPECT_EQ(poll_once(two.far.fd.get(), 1000), POLLIN);
  EXPECT_EQ(two.far.receive(MSG_DONTWAIT), "1");
  for (const char* text : {"4", "5"}) two.near.send(text);
  EXPECT_EQ(read_by_child(two, 4), "2345");
}

}  // namespace
}  // namespace farcall::preload
