// SPDX-License-Identifier: Apache-2.0
//
// How connections of unix sockets end, of streams and of packets, while processes are killed, leave
// children behind or execute other programs. As they are and with the library preloaded.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <random>
#include <string>
#include <string_view>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

class UnixEnds : public ::testing::TestWithParam<int> {};

// As the kernel where a message lies unread in the socket of who is no more.
TEST_P(UnixEnds, APeerThatIsKilledWithBytesUnreadHasResetTheConnection) {
  for (const bool by_epoll : {false, true}) {
    int fds[2];
    ASSERT_EQ(::socketpair(AF_UNIX, GetParam(), 0, fds), 0);
    UniqueFd own(fds[0]);
    UniqueFd other(fds[1]);
    const Mapping shared = Mapping::anonymous_shared(sizeof(std::atomic<bool>));
    auto& sent = *new (shared.data()) std::atomic<bool>(false);
    const pid_t child = ::fork();
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(60);
      own.reset();
      for (int i = 0; i < 20; ++i)
        if (send(other.get(), receive(other.get())) != "4") ::_exit(1);
      while (!sent) ::sched_yield();
      for (int i = 0; i < 2; ++i)
        if (receive(other.get(), 6) != "unread") ::_exit(1);
      ::raise(SIGKILL);
    }
    other.reset();
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(send(own.get(), "talk"), "4");
      ASSERT_EQ(receive(own.get()), "talk");
    }
    for (int i = 0; i < 5; ++i) ASSERT_EQ(send(own.get(), "unread"), "6");
    sent = true;
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    if (by_epoll) {
      const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
      epoll_event event{.events = EPOLLIN, .data = {.fd = own.get()}};
      ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, own.get(), &event), 0);
      ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 20'000), 1);
      EXPECT_EQ(event.events, EPOLLIN | EPOLLERR | EPOLLHUP);
    } else {
      pollfd look{.fd = own.get(), .events = POLLIN | POLLOUT | POLLRDHUP, .revents = 0};
      ASSERT_EQ(::poll(&look, 1, 20'000), 1);
      EXPECT_EQ(look.revents, POLLIN | POLLOUT | POLLERR | POLLHUP | POLLRDHUP);
    }
    int error = 0;
    socklen_t size = sizeof error;
    ASSERT_EQ(::getsockopt(own.get(), SOL_SOCKET, SO_ERROR, &error, &size), 0);
    EXPECT_EQ(error, ECONNRESET);
    EXPECT_EQ(receive(own.get()), "(end)");
  }
}

// A child that takes the first twenty of sixty lines and executes a program that counts what is
// left.
class Reader {
 public:
  static constexpr int kLines = 60;
  static constexpr int kTaken = 20;
  static constexpr std::string_view kLine = "a line of text\n";

  explicit Reader(int type) {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds), 0);
    own = UniqueFd(fds[0]);
    const UniqueFd other(fds[1]);
    EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
    said_ = UniqueFd(fds[0]);
    const UniqueFd says(fds[1]);
    child_ = ::fork();
    if (child_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    own.reset();
    for (int i = 0; i < 20; ++i)
      if (receive(other.get()) != "talk" || send(other.get(), "talk") != "4") ::_exit(1);
    for (int i = 0; i < kTaken; ++i)
      if (receive(other.get(), kLine.size()) != kLine) ::_exit(1);
    taken = true;
    ::dup2(other.get(), STDIN_FILENO);
    ::dup2(says.get(), STDOUT_FILENO);
    ::execl("/usr/bin/wc", "wc", "-l", nullptr);
    ::_exit(1);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void talk() const {
    for (int i = 0; i < 20; ++i) {
      ASSERT_EQ(send(own.get(), "talk"), "4");
      ASSERT_EQ(receive(own.get()), "talk");
    }
  }
  bool write() const {
    for (int i = 0; i < kLines; ++i)
      if (send(own.get(), std::string(kLine)) != std::to_string(kLine.size())) return false;
    return true;
  }
  void expect_the_rest() const {
    char text[32] = {};
    EXPECT_GT(::read(said_.get(), text, sizeof text - 1), 0);
    EXPECT_EQ(text, std::to_string(kLines - kTaken) + "\n");
    int status = 0;
    EXPECT_EQ(::waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
  }

  UniqueFd own;
  Mapping shared = Mapping::anonymous_shared(sizeof(std::atomic<bool>));
  std::atomic<bool>& taken = *new (shared.data()) std::atomic<bool>(false);

 private:
  UniqueFd said_;
  pid_t child_ = -1;
};

TEST_P(UnixEnds, WhatAChildHasSentIsThereForAProgramThatIsExecuted) {
  Reader reader(GetParam());
  reader.talk();
  const pid_t sender = ::fork();
  if (sender == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!reader.write()) ::_exit(1);
    // Meanwhile it does nothing that its library would see.
    ::usleep(500'000);
    ::_exit(0);
  }
  reader.own.reset();
  reader.expect_the_rest();
  int status = 0;
  EXPECT_EQ(::waitpid(sender, &status, 0), sender);
  EXPECT_EQ(status, 0);
}

TEST_P(UnixEnds, ClosingWhileThePeerExecutesAnotherProgramLosesNothing) {
  std::minstd_rand random(1);
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    Reader reader(GetParam());
    reader.talk();
    ASSERT_TRUE(reader.write());
    while (!reader.taken) ::sched_yield();
    const auto begun = std::chrono::steady_clock::now();
    const std::chrono::microseconds pause(random() % 60);
    while (std::chrono::steady_clock::now() - begun < pause) {
    }
    reader.own.reset();
    reader.expect_the_rest();
  }
}

INSTANTIATE_TEST_SUITE_P(Of, UnixEnds, ::testing::Values(SOCK_STREAM, SOCK_SEQPACKET),
                         [](const auto& tested) {
                           return tested.param == SOCK_STREAM ? "bytes" : "packets";
                         });

}  // namespace
}  // namespace farcall::preload
