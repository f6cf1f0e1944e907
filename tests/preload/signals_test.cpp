// SPDX-License-Identifier: Apache-2.0
//
// Signals that come while a call of a connection sleeps.
// The tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

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
    std::thread both([&, self = ::pthread_self()] {
      std::this_thread::sleep_for(50ms);
      pair.put("56");
      std::this_thread::sleep_for(50ms);
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

}  // namespace
}  // namespace farcall::preload
