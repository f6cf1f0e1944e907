// SPDX-License-Identifier: Apache-2.0
//
// Errors that the kernel tells once, where it tells them to the library: the program hears of each,
// of each once, and in its place behind the bytes. These tests run as those of contract_test.cpp
// do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "calls.hpp"
#include "connected.hpp"
#include "contract.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "steps.hpp"

namespace farcall::preload {
namespace {

int pending_error(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
  return error;
}

// A child that takes bytes one by one until it is told that this is the last. It waits now and
// then, so that it is taken to do so again.
void take(int fd, const Steps& steps) {
  char byte = 'x';
  for (int i = 0; byte != 'e'; ++i) {
    if (i % 10 != 0) steps.await();
    require(::recv(fd, &byte, 1, 0) == 1, "recv");
    steps.done();
  }
}

// Until what is sent to it lies in memory.
void send_until_in_memory(int fd, const Steps& steps) {
  int in_memory = 0;
  bool last = false;
  for (int i = 0; !last; ++i) {
    if (i % 10 == 0) ::usleep(5000);
    last = i % 10 != 0 && (in_memory >= 5 || i > 1000);
    const std::uint64_t before = sent_by_kernel(fd);
    ASSERT_EQ(send(fd, last ? "e" : "x"), "1");
    in_memory = !preloaded() || sent_by_kernel(fd) == before ? in_memory + 1 : 0;
    if (i % 10 != 0) steps.tell();
    steps.await_done();
  }
  EXPECT_NE(in_memory, 0);
}

// The reset is found where this end takes back what its peer has not read.
TEST(TcpErrors, AResetThatIsFoundOnTheWayToSleepIsToldBehindTheBytes) {
  const Steps steps;
  const Connected peer = with_child([&](int fd) {
    take(fd, steps);
    require(::send(fd, "last", 4, MSG_NOSIGNAL) == 4, "send");
    steps.done();
    steps.await();
    ::close(fd);
    steps.done();
    steps.await();
  });
  const int fd = peer.fd.get();
  send_until_in_memory(fd, steps);
  steps.await_done();
  EXPECT_EQ(send(fd, "unread"), "6");
  steps.step();
  Settling().settle();
  EXPECT_EQ(poll_once(fd, POLLIN | POLLRDHUP), POLLIN | POLLERR | POLLHUP | POLLRDHUP);
  EXPECT_EQ(receive(fd), "last");
  EXPECT_EQ(receive(fd), "(ECONNRESET)");
  EXPECT_EQ(receive(fd), "(end)");
}

TEST(TcpErrors, AResetThatASendWasToldIsNotToldAgain) {
  const Steps steps;
  const Connected peer = with_child([&](int) { steps.await(); });
  const int fd = peer.fd.get();
  const std::string block(50'000, 'x');
  std::string result;
  for (int i = 0; i < 10'000 && result != "(EAGAIN)"; ++i)
    result = send(fd, block, MSG_DONTWAIT | MSG_NOSIGNAL);
  ASSERT_EQ(result, "(EAGAIN)");
  EXPECT_EQ(peer.child->kill(SIGKILL), 0);
  peer.child->wait();
  EXPECT_EQ(send(fd, "to nobody"), "(ECONNRESET)");
  EXPECT_EQ(receive(fd), "(end)");
  EXPECT_EQ(pending_error(fd), 0);
}

// As a set tells of it that looks at the socket itself, and asks nobody else before.
TEST(TcpErrors, ASetThatDoesNotWaitTellsOfAResetInFull) {
  const Steps steps;
  const Connected peer = with_child([&](int fd) {
    take(fd, steps);
    for (;;) {
      steps.await();
      require(::send(fd, "x", 1, MSG_NOSIGNAL) == 1, "send");
      steps.done();
    }
  });
  const int fd = peer.fd.get();
  send_until_in_memory(fd, steps);
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.fd = fd}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  for (int i = 0; i < 40; ++i) {
    steps.step();
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 20'000), 1);
    ASSERT_EQ(receive(fd), "x");
  }
  EXPECT_EQ(send(fd, "unread"), "6");
  EXPECT_EQ(peer.child->kill(SIGKILL), 0);
  peer.child->wait();
  ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 0), 1);
  EXPECT_EQ(event.events, EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
  EXPECT_EQ(pending_error(fd), ECONNRESET);
}

// What the kernel itself knows: others may hold the socket who have no library.
TEST(TcpErrors, WhoEndsWithBytesUnreadResetsForEverybody) {
  const Steps steps;
  const Connected peer = with_child([&](int fd) {
    take(fd, steps);
    steps.await();
  });
  const int fd = peer.fd.get();
  send_until_in_memory(fd, steps);
  EXPECT_EQ(send(fd, "unread"), "6");
  steps.tell();
  EXPECT_EQ(peer.child->wait(), 0);
  char byte;
  EXPECT_EQ(kernel(SYS_recvfrom, fd, &byte, 1, MSG_DONTWAIT, nullptr, nullptr), -ECONNRESET);
}

// The peer has ended where no library saw it, with nothing unread; and what follows finds nobody,
// which the kernel knows before the library sends what lies in memory.
TEST(TcpErrors, ABrokenPipeIsNotToldToWhoReceives) {
  UsedPair pair;
  const int fd = pair.client.get();
  const Settling settling;
  pair.put("read");
  EXPECT_EQ(receive(pair.server.get()), "read");
  ASSERT_EQ(kernel(SYS_close, pair.server.release()), 0);
  EXPECT_EQ(send(fd, "to nobody"), "9");
  (void)kernel(SYS_sendto, fd, "x", 1, MSG_NOSIGNAL, nullptr, 0);
  settling.settle();
  EXPECT_EQ(receive(fd), "(end)");
  EXPECT_EQ(send(fd, "x"), "(EPIPE)");
}

}  // namespace
}  // namespace farcall::preload
