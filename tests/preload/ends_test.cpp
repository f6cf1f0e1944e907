// SPDX-License-Identifier: Apache-2.0
//
// How connections end, and what is said then.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iterator>
#include <string>
#include <thread>

#include "children.hpp"
#include "contract.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "several.hpp"

namespace farcall::preload {
namespace {

TEST(Contract, TheEndComesAfterTheBytes) {
  Pair pair;
  pair.put("last");
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get()), "last");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
}

TEST(Contract, EitherDirectionEndsAlone) {
  const Pair pair;
  pair.put("last");
  ASSERT_EQ(::shutdown(pair.client.get(), SHUT_WR), 0);
  EXPECT_EQ(receive(pair.server.get()), "last");
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(send(pair.server.get(), "more"), "4");
    EXPECT_EQ(receive(pair.client.get()), "more");
  }
  EXPECT_EQ(send(pair.client.get(), "no"), "(EPIPE)");
}

TEST(Contract, ASleeperHearsTheEnd) {
  Pair pair;
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    pair.client.reset();
  });
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  later.join();
}

TEST(Contract, ShutdownWakesWhoWaitsOnTheSameSocket) {
  const Pair pair;
  std::thread later([&] {
    std::this_thread::sleep_for(30ms);
    ::shutdown(pair.server.get(), SHUT_RDWR);
  });
  EXPECT_EQ(receive(pair.server.get()), "(end)");
  later.join();
}

TEST(Contract, ClosingWithBytesUnreadResets) {
  Pair pair;
  pair.put("nobody reads this");
  pair.server.reset();
  std::this_thread::sleep_for(10ms);
  EXPECT_EQ(receive(pair.client.get()), "(ECONNRESET)");
  EXPECT_EQ(send(pair.client.get(), "x"), "(EPIPE)");
}

TEST(TcpContract, LingeringForNoTimeResets) {
  Pair pair;
  const linger now{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  pair.client.reset();
  EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
}

std::atomic<int> broken_pipes{0};

class CountedPipes {
 public:
  CountedPipes() {
    struct sigaction action {};
    action.sa_handler = [](int) { ++broken_pipes; };
    broken_pipes = 0;
    ::sigaction(SIGPIPE, &action, &before_);
  }
  CountedPipes(const CountedPipes&) = delete;
  CountedPipes& operator=(const CountedPipes&) = delete;
  ~CountedPipes() { ::sigaction(SIGPIPE, &before_, nullptr); }

 private:
  struct sigaction before_ {};
};

TEST(Contract, SendingToNobodyBreaksThePipe) {
  Pair pair;
  pair.server.reset();
  std::string result;
  for (int i = 0; i < 10'000 && (result.empty() || result[0] != '('); ++i) {
    result = send(pair.client.get(), "x");
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_EQ(result, "(EPIPE)");
  const CountedPipes counted;
  EXPECT_EQ(send(pair.client.get(), "x", 0), "(EPIPE)");
  EXPECT_EQ(broken_pipes, 1);
  EXPECT_EQ(send(pair.client.get(), "x", MSG_NOSIGNAL), "(EPIPE)");
  EXPECT_EQ(broken_pipes, 1);
}

// A send of which the kernel has taken a part, when the peer closes with bytes unread.
void expect_part_sent(UsedPair& pair, bool finishes_first = false) {
  const std::string block(64 << 20, 'x');
  std::atomic<long> sender{0};
  std::string result;
  std::thread sends([&] {
    sender = ::syscall(SYS_gettid);
    result = send(pair.client.get(), block, 0);
  });
  while (sender == 0) std::this_thread::yield();
  await_sleep(sender);
  if (finishes_first) {
    EXPECT_EQ(::shutdown(pair.server.get(), SHUT_WR), 0);
    std::this_thread::sleep_for(20ms);
    await_sleep(sender);
  }
  pair.server.reset();
  sends.join();
  EXPECT_NE(result[0], '(') << result;
  EXPECT_NE(result, std::to_string(block.size()));
}

// The next call tells.
TEST(Contract, APartThatIsSentBreaksNoPipe) {
  UsedPair pair;
  const CountedPipes counted;
  expect_part_sent(pair);
  EXPECT_EQ(broken_pipes, 0);
}

TEST(TcpContract, AResetThatCutsASendIsToldToWhoReceives) {
  UsedPair pair;
  const CountedPipes counted;
  expect_part_sent(pair);
  EXPECT_EQ(receive(pair.client.get()), "(ECONNRESET)");
  EXPECT_EQ(receive(pair.client.get()), "(end)");
  EXPECT_EQ(send(pair.client.get(), "x", 0), "(EPIPE)");
  EXPECT_EQ(broken_pipes, 1);
}

TEST(TcpContract, AResetThatCutsASendIsToldToTheNextSend) {
  UsedPair pair;
  const CountedPipes counted;
  expect_part_sent(pair);
  EXPECT_EQ(send(pair.client.get(), "x", 0), "(ECONNRESET)");
  EXPECT_EQ(broken_pipes, 0);
  EXPECT_EQ(send(pair.client.get(), "x", 0), "(EPIPE)");
  EXPECT_EQ(broken_pipes, 1);
}

TEST(TcpContract, ABrokenPipeThatCutsASendIsToldToWhoAsks) {
  UsedPair pair;
  const CountedPipes counted;
  expect_part_sent(pair, true);
  int error = 0;
  socklen_t size = sizeof error;
  ASSERT_EQ(::getsockopt(pair.client.get(), SOL_SOCKET, SO_ERROR, &error, &size), 0);
  EXPECT_EQ(error, EPIPE);
  EXPECT_EQ(broken_pipes, 0);
}

// The kernel resets a TCP connection whose bytes nobody will read. Plain ends know of it when the
// other is gone; each of these looks that a program may begin with must tell.
class TcpUnread : public ::testing::TestWithParam<std::tuple<bool, const char*>> {};

std::string events_of(int fd, short asked) {
  const short told = poll_once(fd, asked, 20'000);
  return std::string((told & POLLIN) != 0 ? "in " : "") + ((told & POLLERR) != 0 ? "err " : "") +
         ((told & POLLHUP) != 0 ? "hup " : "") + ((told & POLLRDHUP) != 0 ? "rdhup" : "");
}

TEST_P(TcpUnread, APeerThatHasGoneHasResetTheConnection) {
  const auto& [killed, first] = GetParam();
  Pair pair(false);
  const pid_t child = in_child([&, killed = killed] {
    pair.client.reset();
    for (int i = 0; i < 20; ++i) send(pair.server.get(), receive(pair.server.get()));
    ASSERT_EQ(receive(pair.server.get(), 6), "unread");
    if (killed) ::raise(SIGKILL);
  });
  pair.server.reset();
  const int fd = pair.client.get();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(send(fd, "talk"), "4");
    ASSERT_EQ(receive(fd), "talk");
  }
  ASSERT_EQ(send(fd, "unread and more"), "15");
  EXPECT_EQ(exit_status(child), killed ? 1000 + SIGKILL : 0);

  const std::string look = first;
  if (look == "poll") {
    EXPECT_EQ(events_of(fd, POLLIN | POLLRDHUP), "in err hup rdhup");
  }
  if (look == "poll for input") {
    EXPECT_EQ(events_of(fd, POLLIN), "in err hup ");
  }
  if (look == "epoll") {
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.fd = fd}};
    ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, 20'000), 1);
    EXPECT_EQ(event.events, EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP);
  }
  if (look == "send") {
    std::this_thread::sleep_for(1ms);
    EXPECT_EQ(send(fd, "to nobody", 0), "(ECONNRESET)");
  } else if (look == "recv") {
    EXPECT_EQ(receive(fd), "(ECONNRESET)");
  } else if (look == "recv of nothing") {
    EXPECT_EQ(receive(fd, 0), "(ECONNRESET)");
  } else {
    int error = 0;
    socklen_t size = sizeof error;
    ASSERT_EQ(::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size), 0);
    EXPECT_EQ(error, ECONNRESET);
  }
  // It is told once.
  EXPECT_EQ(receive(fd), "(end)");
  EXPECT_EQ(send(fd, "to nobody"), "(EPIPE)");
  EXPECT_EQ(events_of(fd, POLLIN | POLLRDHUP), "in hup rdhup");
}

INSTANTIATE_TEST_SUITE_P(Of, TcpUnread,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values("poll", "poll for input", "epoll",
                                                              "send", "recv", "recv of nothing",
                                                              "option")),
                         [](const auto& test) {
                           std::string name = std::get<1>(test.param);
                           std::erase(name, ' ');
                           return (std::get<0>(test.param) ? "killed_" : "exited_") + name;
                         });

// What a ring does not hold the kernel does, which then knows of the reset by itself.
TEST(TcpCalls, AResetOfMoreThanARingHoldsIsToldOnceToWhoAsksForNothing) {
  Pair pair(false);
  const pid_t child = in_child([&] {
    pair.client.reset();
    for (int i = 0; i < 20; ++i) send(pair.server.get(), receive(pair.server.get()));
    ASSERT_EQ(receive(pair.server.get(), 1), "x");
    ::raise(SIGSTOP);
  });
  pair.server.reset();
  const int fd = pair.client.get();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(send(fd, "talk"), "4");
    ASSERT_EQ(receive(fd), "talk");
  }
  ASSERT_EQ(send(fd, "x"), "1");
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  while (send(fd, std::string(4096, 'u'), MSG_DONTWAIT) != "(EAGAIN)") continue;
  ::kill(child, SIGKILL);
  EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  EXPECT_EQ(events_of(fd, POLLIN | POLLRDHUP), "in err hup rdhup");
  EXPECT_EQ(receive(fd, 0), "(ECONNRESET)");
  EXPECT_EQ(receive(fd, 0), "(end)");
  EXPECT_EQ(receive(fd), "(end)");
}

TEST(Contract, TheKilledAreMissedAtOnce) {
  for (int round = 0; round < 20; ++round) {
    Pair pair(false);
    const pid_t child = in_child([&] {
      pair.client.reset();
      for (;;) {
        const std::string text = receive(pair.server.get());
        send(pair.server.get(), text);
      }
    });
    pair.server.reset();
    for (int i = 0; i < 100 + round; ++i) {
      ASSERT_EQ(send(pair.client.get(), "echo"), "4");
      ASSERT_EQ(receive(pair.client.get()), "echo");
    }
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(round * 50));
      ::kill(child, SIGKILL);
    });
    std::string last;
    for (int i = 0; i < 10'000'000; ++i) {
      last = send(pair.client.get(), "echo");
      if (last[0] == '(') break;
      last = receive(pair.client.get());
      if (last[0] == '(') break;
    }
    EXPECT_TRUE(last == "(end)" || last == "(ECONNRESET)" || last == "(EPIPE)") << last;
    killer.join();
    EXPECT_EQ(exit_status(child), 1000 + SIGKILL);
  }
}

// --- resets and ends as the next call tells of them

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

TEST(TcpCalls, AResetDuringAWaitForMoreIsToldByTheNextCall) {
  for (const bool of_messages : {false, true}) {
    Pair pair;
    const linger now{.l_onoff = 1, .l_linger = 0};
    ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    EXPECT_EQ(send(pair.client.get(), "last"), "4");
    std::thread later([&] {
      std::this_thread::sleep_for(20ms);
      pair.client.reset();
    });
    Several two(2, 4);
    if (of_messages) {
      EXPECT_EQ(two.receive(pair.server.get()), 1);
      EXPECT_EQ(two.text(0), "last");
    } else {
      EXPECT_EQ(receive(pair.server.get(), 100, MSG_WAITALL), "last");
    }
    later.join();
    EXPECT_EQ(receive(pair.server.get()), "(ECONNRESET)");
    EXPECT_EQ(receive(pair.server.get()), "(end)");
  }
}

// A call for several messages tells of it before it looks for any.
TEST(TcpCalls, AResetIsToldBeforeSeveralMessages) {
  Pair pair;
  const linger now{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
  EXPECT_EQ(send(pair.client.get(), "last"), "4");
  pair.client.reset();
  Several two(2, 4);
  EXPECT_EQ(two.receive(pair.server.get()), -1);
  EXPECT_EQ(errno, ECONNRESET);
  EXPECT_EQ(receive(pair.server.get()), "last");
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

// The process that daemon() leaves behind does not tell of its end.
TEST(Calls, WhatADaemonHasNotReadResetsItsConnection) {
  Pair pair;
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
  EXPECT_EQ(send(pair.client.get(), "never read"), "10");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pair.client.reset();
    ::_exit(::daemon(1, 1) == 0 ? 0 : 1);
  }
  pair.server.reset();
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(receive(pair.client.get()), "(ECONNRESET)");
}

}  // namespace
}  // namespace farcall::preload
