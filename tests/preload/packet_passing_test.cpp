// SPDX-License-Identifier: Apache-2.0
//
// What comes with packets and what becomes of those that nobody has read: descriptors and
// credentials, and sockets that are passed on, inherited or taken over. The tests run as those of
// packet_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include "contract.hpp"
#include "farcall/memory.hpp"
#include "packets.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"
#include "unix_message.hpp"

namespace farcall::preload {
namespace {

TEST(Packets, ADescriptorComesWithItsMessage) {
  const Packets both;
  const UniqueFd file = new_file();
  for (int round = 0; round < 20; ++round) {
    both.put("before");
    both.put("before");
    ASSERT_EQ(send_with(both.a(), round % 2 == 0 ? "with" : "", {file.get()}),
              round % 2 == 0 ? 4 : 0);
    both.put("behind");
    for (int i = 0; i < 2; ++i) {
      const Got before = receive_all(both.b());
      EXPECT_EQ(before.text, "before");
      EXPECT_TRUE(before.fds.empty());
    }
    if (round % 3 == 0) {
      const Got look = receive_all(both.b(), 100, MSG_PEEK);
      EXPECT_EQ(look.fds.size(), 1U);
    }
    const Got got = receive_all(both.b());
    EXPECT_EQ(got.text, round % 2 == 0 ? "with" : "");
    ASSERT_EQ(got.fds.size(), 1U);
    EXPECT_EQ(number_of(got.fds[0].get()), number_of(file.get()));
    const Got behind = receive_all(both.b());
    EXPECT_EQ(behind.text, "behind");
    EXPECT_TRUE(behind.fds.empty());
    both.talk(round % 3);
  }
}

TEST(Packets, CredentialsComeFromTheMomentTheyAreAskedFor) {
  const Packets both;
  both.put("before");
  both.put("");
  const int one = 1;
  ASSERT_EQ(::setsockopt(both.b(), SOL_SOCKET, SO_PASSCRED, &one, sizeof one), 0);
  EXPECT_EQ(receive(both.b()), "before");
  char byte = 0;
  EXPECT_EQ(::recv(both.b(), &byte, 1, 0), 0);
  for (int round = 0; round < 10; ++round) {
    both.put("behind");
    const Got got = receive_all(both.b());
    EXPECT_EQ(got.text, "behind");
    EXPECT_TRUE(got.has_credentials);
    EXPECT_EQ(got.credentials.pid, ::getpid());
  }
}

TEST(Packets, AndDescriptorsGoBothWaysWhileProcessesTalk) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd own(fds[0]);
  UniqueFd other(fds[1]);
  constexpr int kRounds = 2000;
  const auto is_with = [](int round) { return round % 7 == 3; };
  const auto reply = [&](int socket, const Got& got) {
    return got.fds.empty() ? ::send(socket, got.text.data(), got.text.size(), MSG_NOSIGNAL)
                           : send_with(socket, got.text, {got.fds[0].get()});
  };
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    own.reset();
    for (int round = 0; round < kRounds; ++round) {
      const Got got = receive_all(other.get());
      if (got.text != std::to_string(round) || got.fds.size() != (is_with(round) ? 1U : 0U))
        ::_exit(1);
      if (reply(other.get(), got) < 0) ::_exit(2);
    }
    ::_exit(0);
  }
  other.reset();
  const UniqueFd file = new_file();
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = std::to_string(round);
    if (is_with(round))
      ASSERT_EQ(send_with(own.get(), text, {file.get()}), static_cast<ssize_t>(text.size()));
    else
      ASSERT_EQ(send(own.get(), text), std::to_string(text.size()));
    const Got got = receive_all(own.get());
    ASSERT_EQ(got.text, text);
    ASSERT_EQ(got.fds.size(), is_with(round) ? 1U : 0U);
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), 1) << "not accelerated";
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// --- where the library cannot follow

constexpr const char* kUnread[] = {"first", "", "the third one"};

void put_unread(const Packets& both) {
  for (const char* text : kUnread) both.put(text);
  both.put(std::string(3000, 'l'));
}

// By the system call alone.
std::string receive_raw(int fd, std::size_t size = 4096) {
  std::string text(size, '\0');
  const long got =
      kernel(SYS_recvfrom, fd, text.data(), text.size(), MSG_DONTWAIT, nullptr, nullptr);
  if (got < 0) return "(" + std::string(strerrorname_np(static_cast<int>(-got))) + ")";
  text.resize(static_cast<std::size_t>(got));
  return text;
}

void expect_unread(int fd) {
  for (const char* text : kUnread) EXPECT_EQ(receive_raw(fd), text);
  EXPECT_EQ(receive_raw(fd), std::string(3000, 'l'));
  EXPECT_EQ(receive_raw(fd), "(EAGAIN)");
}

TEST(Packets, OneThatIsPassedOnKeepsWhatIsUnread) {
  const Packets carrier;
  for (int round = 0; round < 5; ++round) {
    Packets passed;
    put_unread(passed);
    ASSERT_EQ(send_with(carrier.a(), "with", {passed.b()}), 4);
    const Got got = receive_all(carrier.b());
    ASSERT_EQ(got.fds.size(), 1U);
    expect_unread(got.fds[0].get());
    passed.put("more");
    EXPECT_EQ(receive_raw(got.fds[0].get()), "more");
    EXPECT_EQ(send(got.fds[0].get(), "back"), "4");
    EXPECT_EQ(receive(passed.a()), "back");
  }
}

TEST(Packets, AStandardStreamKeepsWhatIsUnread) {
  Packets both;
  put_unread(both);
  const int kept = ::dup(STDIN_FILENO);
  ASSERT_EQ(::dup2(both.b(), STDIN_FILENO), STDIN_FILENO);
  expect_unread(STDIN_FILENO);
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
}

// It is too long to be given back, and may be there before memory is shared.
TEST(Packets, ALongOneInFrontKeepsItsPlace) {
  for (const bool warm : {false, true}) {
    Packets both(warm);
    const std::string text(60'000, 'l');
    both.put(text);
    for (int i = 0; i < 30; ++i) {
      epoll_event event{};
      ASSERT_EQ(send(both.b(), "ping"), "4");
      ASSERT_EQ(::epoll_wait(both.set_a.get(), &event, 1, 20'000), 1);
      ASSERT_EQ(receive(both.a()), "ping");
      ASSERT_EQ(::epoll_wait(both.set_b.get(), &event, 1, 20'000), 1);
      ASSERT_EQ(receive(both.b(), 2, MSG_PEEK), "ll");
    }
    both.put("behind");
    const int kept = ::dup(STDIN_FILENO);
    ASSERT_EQ(::dup2(both.b(), STDIN_FILENO), STDIN_FILENO);
    EXPECT_EQ(receive_raw(STDIN_FILENO, text.size()), text);
    EXPECT_EQ(receive_raw(STDIN_FILENO), "behind");
    ::dup2(kept, STDIN_FILENO);
    ::close(kept);
  }
}

// Both ends in one process: the sleeper is woken by what its program must not see.
TEST(Packets, ASleeperDoesNotSeeThatItsPeerLeaves) {
  for (int round = 0; round < 10; ++round) {
    Packets both;
    put_unread(both);
    std::thread sleeper([&] {
      switch (round % 3) {
        case 0: EXPECT_EQ(receive(both.a()), "back"); break;
        case 1: EXPECT_EQ(receive(both.a(), 100, MSG_PEEK), "back"); break;
        default: {
          pollfd wait{.fd = both.a(), .events = POLLIN, .revents = 0};
          while (receive(both.a(), 100, MSG_DONTWAIT) != "back") ::poll(&wait, 1, 20'000);
        }
      }
    });
    std::this_thread::sleep_for(5ms);
    const int kept = ::dup(STDIN_FILENO);
    ASSERT_EQ(::dup2(both.b(), STDIN_FILENO), STDIN_FILENO);
    expect_unread(STDIN_FILENO);
    ::dup2(kept, STDIN_FILENO);
    ::close(kept);
    EXPECT_EQ(send(both.b(), "back"), "4");
    sleeper.join();
    if (round % 3 == 1) {
      EXPECT_EQ(receive(both.a()), "back");
    }
    EXPECT_EQ(receive(both.a(), 100, MSG_DONTWAIT), "(EAGAIN)");
  }
}

TEST(Packets, AProgramThatIsExecutedReadsWhatIsUnread) {
  int fds[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
  UniqueFd own(fds[0]);
  UniqueFd other(fds[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    own.reset();
    for (int i = 0; i < 300; ++i)
      if (receive(other.get()) != "talk" || send(other.get(), "talk") != "4") ::_exit(1);
    // Some of these are unread.
    if (send(other.get(), "go") != "2") ::_exit(1);
    std::this_thread::sleep_for(20ms);
    if (receive(other.get()) != "line 0\n") ::_exit(1);
    ::fcntl(other.get(), F_SETFD, 0);
    ::dup2(other.get(), STDIN_FILENO);
    ::dup2(other.get(), STDOUT_FILENO);
    ::execl("/bin/cat", "cat", nullptr);
    ::_exit(1);
  }
  other.reset();
  for (int i = 0; i < 300; ++i) {
    ASSERT_EQ(send(own.get(), "talk"), "4");
    ASSERT_EQ(receive(own.get()), "talk");
  }
  if (preloaded()) {
    EXPECT_EQ(stream_mappings(), 1) << "not accelerated";
  }
  ASSERT_EQ(receive(own.get()), "go");
  for (int i = 0; i < 20; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    ASSERT_EQ(send(own.get(), line), std::to_string(line.size()));
  }
  for (int i = 1; i < 20; ++i) EXPECT_EQ(receive(own.get()), "line " + std::to_string(i) + "\n");
  ASSERT_EQ(::shutdown(own.get(), SHUT_WR), 0);
  EXPECT_EQ(receive(own.get()), "(end)");
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Packets, AChildGoesOn) {
  const Packets both;
  both.put("for whoever reads");
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (receive(both.b()) != "for whoever reads") ::_exit(1);
    for (int i = 0; i < 100; ++i)
      if (receive(both.b()) != "question" || send(both.b(), "answer") != "6") ::_exit(2);
    ::_exit(0);
  }
  for (int i = 0; i < 100; ++i) {
    both.put("question");
    ASSERT_EQ(receive(both.a()), "answer");
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  both.talk(10);
}

}  // namespace
}  // namespace farcall::preload
