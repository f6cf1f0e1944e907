// SPDX-License-Identifier: Apache-2.0
//
// Signals that come while a call of a connection sleeps.
// The tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "connected.hpp"
#include "contract.hpp"
#include "farcall/memory.hpp"

namespace farcall::preload {
namespace {

std::atomic<int> signals{0};
void on_signal(int) { ++signals; }

void handle(int flags) {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = flags;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  signals = 0;
}

TEST(Contract, ASignalInterrupts) {
  const Pair pair;
  handle(0);
  const pthread_t self = ::pthread_self();
  std::thread later([&, waits = kernel(SYS_gettid)] {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits);  // one that comes before interrupts nothing
    ::pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(receive(pair.server.get()), "(EINTR)");
  later.join();
  EXPECT_EQ(signals, 1);
}

TEST(Contract, ASignalThatRestartsDoesNotInterrupt) {
  const Pair pair;
  handle(SA_RESTART);
  const pthread_t self = ::pthread_self();
  std::thread later([&] {
    std::this_thread::sleep_for(50ms);
    ::pthread_kill(self, SIGUSR1);
    std::this_thread::sleep_for(50ms);
    pair.put("after");
  });
  EXPECT_EQ(receive(pair.server.get()), "after");
  later.join();
  EXPECT_EQ(signals, 1);
}

// Sends this thread a signal when it sleeps.
std::thread signal_sleeper() {
  return std::thread([self = ::pthread_self(), waits = kernel(SYS_gettid)] {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits);
    ::pthread_kill(self, SIGUSR1);
  });
}

TEST(Contract, ASignalEndsAWaitForAllWithThePart) {
  const Pair pair;
  for (const int flags : {0, SA_RESTART}) {
    handle(flags);
    // With the part there already, and with one that comes while the call sleeps.
    pair.put("1234");
    std::thread later = signal_sleeper();
    EXPECT_EQ(receive(pair.server.get(), 6, MSG_WAITALL), "1234");
    later.join();
    std::thread both([&, self = ::pthread_self(), waits = kernel(SYS_gettid)] {
      std::this_thread::sleep_for(50ms);
      await_sleep(waits);
      pair.put("56");
      std::this_thread::sleep_for(50ms);
      await_sleep(waits);
      ::pthread_kill(self, SIGUSR1);
    });
    EXPECT_EQ(receive(pair.server.get(), 6, MSG_WAITALL), "56");
    both.join();
    EXPECT_EQ(signals, 2);
    pair.talk(3);
  }
}

TEST(Contract, ASignalEndsASendOfWhichAPartIsTaken) {
  const std::string all(32'000'000, 'a');
  for (const int flags : {0, SA_RESTART}) {
    const Pair pair;
    handle(flags);
    for (const bool scattered : {false, true}) {
      std::thread later = signal_sleeper();
      iovec parts[2] = {{.iov_base = const_cast<char*>(all.data()), .iov_len = 1000},
                        {.iov_base = const_cast<char*>(all.data()), .iov_len = all.size()}};
      const ssize_t sent = scattered ? ::writev(pair.client.get(), parts, 2)
                                     : ::write(pair.client.get(), all.data(), all.size());
      later.join();
      EXPECT_GT(sent, 0);
      EXPECT_LT(sent, static_cast<ssize_t>(all.size()));
      for (ssize_t left = sent; left > 0;) {
        const std::string part =
            receive(pair.server.get(), static_cast<std::size_t>(std::min<ssize_t>(left, 65536)));
        ASSERT_EQ(part[0], 'a') << part;
        left -= static_cast<ssize_t>(part.size());
      }
      EXPECT_EQ(receive(pair.server.get(), 1, MSG_DONTWAIT), "(EAGAIN)");
    }
    EXPECT_EQ(signals, 2);
  }
}

TEST(Contract, ASignalEndsSeveralMessagesWithThoseThatAreSent) {
  for (const int flags : {0, SA_RESTART}) {
    const Pair pair;
    handle(flags);
    std::string text(1000, 'm');
    iovec part{.iov_base = text.data(), .iov_len = text.size()};
    mmsghdr message{};
    message.msg_hdr.msg_iov = &part;
    message.msg_hdr.msg_iovlen = 1;
    std::vector<mmsghdr> messages(1000, message);
    // Until there is no room, so that the next call ends among its own.
    std::thread later = signal_sleeper();
    int sent = 1000;
    while (sent == 1000) sent = ::sendmmsg(pair.client.get(), messages.data(), 1000, 0);
    later.join();
    EXPECT_GT(sent, 0) << std::strerror(errno);
    EXPECT_LT(sent, 1000);
    EXPECT_EQ(signals, 1);
  }
}

TEST(Contract, ASignalEndsSeveralMessagesWithThoseThatCame) {
  for (const int flags : {0, SA_RESTART}) {
    const Pair pair;
    handle(flags);
    char text[2][8];
    iovec parts[2];
    mmsghdr messages[2] = {};
    for (int i = 0; i < 2; ++i) {
      parts[i] = {.iov_base = text[i], .iov_len = sizeof text[i]};
      messages[i].msg_hdr.msg_iov = &parts[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    pair.put("first");
    std::thread later = signal_sleeper();
    EXPECT_EQ(::recvmmsg(pair.server.get(), messages, 2, 0, nullptr), 1);
    later.join();
    EXPECT_EQ(messages[0].msg_len, 5U);
    EXPECT_EQ(signals, 1);
  }
}

TEST(Contract, ASignalInterruptsEpoll) {
  const Pair pair;
  handle(SA_RESTART);
  const UniqueFd set(::epoll_create1(0));
  epoll_event event{.events = EPOLLIN, .data = {.fd = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, pair.server.get(), &event), 0);
  const pthread_t self = ::pthread_self();
  std::thread later([&, waits = kernel(SYS_gettid)] {
    std::this_thread::sleep_for(50ms);
    await_sleep(waits);
    ::pthread_kill(self, SIGUSR1);
  });
  EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 60'000), -1);
  EXPECT_EQ(errno, EINTR);
  later.join();
}

// One that waits to be permitted is none of the call's business, nor is one that nobody handles.
TEST(Contract, ASignalThatIsBlockedInterruptsNothing) {
  const UsedPair pair;
  handle(0);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, nullptr), 0);
  ASSERT_EQ(::raise(SIGUSR1), 0);
  const int fd = pair.server.get();
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  epoll_event event{};
  for (int i = 0; i < 3; ++i) {
    std::thread later([&] {
      std::this_thread::sleep_for(20ms);
      pair.put("x");
    });
    if (i == 0) {
      EXPECT_EQ(::poll(&wait, 1, 20'000), 1) << errno_name();
    }
    if (i == 1) {
      EXPECT_EQ(::epoll_wait(pair.set.get(), &event, 1, 20'000), 1) << errno_name();
    }
    EXPECT_EQ(receive(fd), "x");
    later.join();
  }
  EXPECT_EQ(signals, 0);
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  EXPECT_EQ(signals, 1);
}

// Bytes are there, so the call has no need to let it through.
TEST(Contract, ASignalThatIsPendingDoesNotInterruptWhereBytesAre) {
  const UsedPair pair;
  handle(0);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &blocked, nullptr), 0);
  ASSERT_EQ(::raise(SIGUSR1), 0);
  sigset_t none;
  ::sigemptyset(&none);
  const int fd = pair.server.get();
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  const timespec limit{.tv_sec = 20, .tv_nsec = 0};
  const timespec at_once{};
  fd_set read;
  for (int i = 0; i < 20; ++i) {
    pair.put("x");
    const timespec* const time = i % 2 == 0 ? &limit : &at_once;
    EXPECT_EQ(::ppoll(&wait, 1, time, &none), 1) << errno_name();
    FD_ZERO(&read);
    FD_SET(fd, &read);
    EXPECT_EQ(::pselect(fd + 1, &read, nullptr, nullptr, time, &none), 1) << errno_name();
    EXPECT_EQ(receive(fd), "x");
  }
  EXPECT_EQ(signals, 0);
  ::pthread_sigmask(SIG_UNBLOCK, &blocked, nullptr);
  EXPECT_EQ(signals, 1);
}

// Neither while a call sleeps nor while it looks: the peer takes its time, but not long.
TEST(Contract, ASignalThatACallsMaskBlocksDoesNotEndIt) {
  const Connected made = with_child([](int peer) {
    for (char byte; ::recv(peer, &byte, 1, 0) == 1;) {
      for (volatile int i = 0; i < 20'000;) i = i + 1;
      if (::send(peer, &byte, 1, MSG_NOSIGNAL) != 1) break;
    }
  });
  const int fd = made.fd.get();
  const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  sigset_t mask;
  ::sigemptyset(&mask);
  ::sigaddset(&mask, SIGALRM);
  pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
  fd_set read;
  const std::function<int()> ways[] = {
      [&] { return ::ppoll(&one, 1, nullptr, &mask); },
      [&] {
        FD_ZERO(&read);
        FD_SET(fd, &read);
        return ::pselect(fd + 1, &read, nullptr, nullptr, nullptr, &mask);
      },
      [&] { return ::epoll_pwait(set.get(), &event, 1, -1, &mask); },
  };
  struct sigaction action {};
  action.sa_handler = on_signal;
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  const itimerval often{.it_interval = {0, 100}, .it_value = {0, 100}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  for (const auto& way : ways) {
    SCOPED_TRACE(&way - ways);
    int ended = 0;
    for (int i = 0; i < 4000; ++i) {
      char byte = 'x';
      while (::send(fd, &byte, 1, MSG_NOSIGNAL) != 1) ASSERT_EQ(errno, EINTR);
      if (way() != 1) ++ended;
      while (::recv(fd, &byte, 1, 0) != 1) ASSERT_EQ(errno, EINTR);
    }
    EXPECT_EQ(ended, 0);
  }
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  EXPECT_GT(signals, 0);
}

TEST(Contract, ASignalThatNobodyHandlesInterruptsNothing) {
  const Pair pair;
  std::atomic<bool> over{false};
  std::thread disturbs([&, self = ::pthread_self()] {
    while (!over) {
      ::pthread_kill(self, SIGWINCH);
      std::this_thread::yield();
    }
  });
  std::thread sends([&] {
    for (int i = 0; i < 300; ++i) {
      std::this_thread::sleep_for(1ms);
      EXPECT_EQ(send(pair.client.get(), "x"), "1");
      EXPECT_EQ(receive(pair.client.get()), "y");
    }
  });
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(receive(pair.server.get()), "x");
    EXPECT_EQ(send(pair.server.get(), "y"), "1");
  }
  sends.join();
  over = true;
  disturbs.join();
}

// --- the handlers themselves

void on_another_signal(int, siginfo_t*, void*) { ++signals; }

TEST(Contract, AHandlerIsTheOneThatWasInstalled) {
  handle(0);
  struct sigaction found {};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &found), 0);
  EXPECT_EQ(found.sa_handler, on_signal);
  EXPECT_EQ(::signal(SIGUSR1, SIG_IGN), on_signal);
  EXPECT_EQ(::signal(SIGUSR1, SIG_DFL), SIG_IGN);
  struct sigaction action {};
  action.sa_sigaction = on_another_signal;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &found), 0);
  EXPECT_EQ(found.sa_sigaction, on_another_signal);
  struct sigaction as_others_see_it {};
  as_others_see_it.sa_handler = ::signal(SIGUSR1, SIG_DFL);
  EXPECT_EQ(as_others_see_it.sa_sigaction, on_another_signal);
}

// --- limits of time

TEST(Contract, TimeLimitsEndAWaitForTheRest) {
  const Pair pair;
  const timeval limit{.tv_sec = 0, .tv_usec = 60'000};
  const auto passed_since = [](auto began) { return std::chrono::steady_clock::now() - began; };
  ASSERT_EQ(::setsockopt(pair.server.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  if (!over_packets()) {
    pair.put("1234");
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(receive(pair.server.get(), 6, MSG_WAITALL), "1234");
    EXPECT_GE(passed_since(began), 60ms);
  }
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::string block(over_packets() ? 10'000 : 1'000'000, 'x');
  const auto fill = [&] {
    std::string result = "0";
    auto began = std::chrono::steady_clock::now();
    for (int i = 0; i < 10'000 && result[0] != '('; ++i) {
      began = std::chrono::steady_clock::now();
      result = send(pair.client.get(), block);
    }
    EXPECT_EQ(result, "(EAGAIN)");
    EXPECT_GE(passed_since(began), 60ms);
  };
  fill();
  // A reader that is awake makes room in memory, while the kernel has none.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(receive(pair.server.get(), 1), "x");
  fill();
}

// What it has slept before there was room counts, too. Of unix streams it does not.
TEST(TcpContract, ATimeLimitIsOfAllSleepOfASend) {
  const UsedPair pair;
  const int little = 32768;
  for (const int option : {SO_SNDBUF, SO_RCVBUF})
    for (const int fd : {pair.client.get(), pair.server.get()})
      ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, option, &little, sizeof little), 0);
  const timeval limit{.tv_sec = 2, .tv_usec = 0};
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::string block(64 << 20, 'x');
  std::size_t before = 0;
  for (ssize_t sent = 0; sent >= 0; before += static_cast<std::size_t>(sent))
    if ((sent = ::send(pair.client.get(), block.data(), 1000, MSG_DONTWAIT)) < 0) break;
  const auto began = std::chrono::steady_clock::now();
  std::thread reads([&] {
    std::this_thread::sleep_for(1500ms);
    EXPECT_EQ(poll_once(pair.server.get(), POLLIN), POLLIN);  // from here on the kernel has all
    for (std::size_t got = 0; got < before;) got += receive(pair.server.get(), 65536).size();
  });
  const std::string sent = send(pair.client.get(), block);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 3s);
  EXPECT_NE(sent[0], '(') << sent;
  EXPECT_NE(sent, std::to_string(block.size()));
  reads.join();
}

// The kernel starts no call again that has a limit.
TEST(Contract, ASendWithATimeLimitIsEndedByASignalThatRestartsOthers) {
  const Pair pair;
  const int little = 32768;
  const timeval limit{.tv_sec = 20, .tv_usec = 0};
  for (const int option : {SO_SNDBUF, SO_RCVBUF})
    for (const int fd : {pair.client.get(), pair.server.get()})
      ASSERT_EQ(::setsockopt(fd, SOL_SOCKET, option, &little, sizeof little), 0);
  ASSERT_EQ(::setsockopt(pair.client.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  const std::string block(1000, 'x');
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(send(pair.client.get(), "x"), "1");
    EXPECT_EQ(receive(pair.server.get()), "x");
  }
  while (send(pair.client.get(), block, MSG_DONTWAIT)[0] != '(') {
  }
  struct sigaction action {};
  action.sa_handler = [](int) {};
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  std::atomic<bool> ended{false};
  const pthread_t self = ::pthread_self();
  std::thread interrupter([&] {
    while (!ended) {
      std::this_thread::sleep_for(50ms);
      ::pthread_kill(self, SIGUSR1);
    }
  });
  std::string result;
  for (int i = 0; i < 1000 && (i == 0 || result[0] != '('); ++i)
    result = send(pair.client.get(), block);
  EXPECT_EQ(result, "(EINTR)");
  ended = true;
  interrupter.join();
  ::signal(SIGUSR1, SIG_DFL);
}

// More than the library can tell apart.
std::atomic<int> which{-1};
template <int kWhich>
void one_of_many(int) {
  which = kWhich;
}
template <int... kWhich>
void expect_each_to_run(std::integer_sequence<int, kWhich...>) {
  const auto expect = [](int number, void (*handler)(int)) {
    ASSERT_NE(::signal(SIGUSR1, handler), SIG_ERR);
    ASSERT_EQ(::raise(SIGUSR1), 0);
    EXPECT_EQ(which, number);
    EXPECT_EQ(::signal(SIGUSR1, SIG_DFL), handler) << number;
  };
  (expect(kWhich, one_of_many<kWhich>), ...);
}

TEST(Contract, EachOfManyHandlersIsTheOneThatRuns) {
  expect_each_to_run(std::make_integer_sequence<int, 80>());
}

TEST(Contract, ASignalIsHeldByWhoAsksForThat) {
  handle(0);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  EXPECT_EQ(::sigset(SIGUSR1, SIG_HOLD), on_signal);
  ASSERT_EQ(::raise(SIGUSR1), 0);
  EXPECT_EQ(signals, 0);
  EXPECT_EQ(::sigset(SIGUSR1, on_signal), SIG_HOLD);
#pragma GCC diagnostic pop
  EXPECT_EQ(signals, 1);
}

}  // namespace
}  // namespace farcall::preload
