// SPDX-License-Identifier: Apache-2.0
//
// What it costs not to be accelerated, or to be so in vain.
// These tests run as those of contract_test.cpp do.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "preload/waiting.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// System calls of `work`, in a child that its parent looks at; -1 if it may not. What is done there
// `before` is not counted, but `seen` is told of each call, while it is kept from returning.
template <class Work, class Before, class Seen>
int count_system_calls(Work work, Before before, Seen seen) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(99);
    ::raise(SIGSTOP);
    before();
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
    seen(info.entry.nr);
    if (info.entry.nr == SYS_getppid)
      ++marks;
    else if (marks == 1)
      ++count;
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return count;
}
template <class Work>
int count_system_calls(Work work) {
  return count_system_calls(
      work, [] {}, [](std::uint64_t) {});
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
    // what this one is called and which socket stays with the kernel, one whether a stranger waits.
    EXPECT_LE(count, kOwn + (preloaded() ? 27 : 0)) << (connects ? "connects" : "accepts");
  }
}

std::vector<unsigned> allowed_processors() {
  cpu_set_t allowed;
  std::vector<unsigned> all;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return all;
  for (unsigned i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &allowed)) all.push_back(i);
  return all;
}
void stay_on(unsigned processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(processor, &one);
  EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
}

TEST(Calls, APollOfBytesInTheKernelIsOneSystemCall) {
  const std::array<Pair, 4> pairs;
  std::array<pollfd, 4> asked;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    asked[i] = {.fd = pairs[i].server.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(kernel(SYS_write, pairs[i].client.get(), "bytes", 5), 5);
  }
  constexpr int kCalls = 10;
  const int count = count_system_calls([&] {
    for (int i = 0; i < kCalls; ++i) {
      EXPECT_EQ(::poll(asked.data(), asked.size(), -1), 4);
      for (const pollfd& one : asked) EXPECT_EQ(one.revents, POLLIN);
    }
  });
  if (count < 0) GTEST_SKIP() << "a process may not look at its child";
  EXPECT_GE(count, kCalls);
  EXPECT_LE(count, 2 * kCalls);
}

// Bytes that come long after they are waited for come by the kernel, and looking for them before
// each sleep would cost more than they do.
TEST(Calls, LongWaitsInASetCostFewSystemCalls) {
  constexpr int kRounds = 500;
  // Who shares a processor with its peer tries something else.
  const std::vector<unsigned> processors = allowed_processors();
  if (processors.size() < 2) GTEST_SKIP() << "there is one processor only";
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::alarm(60);
    stay_on(processors[0]);
    const UniqueFd server = accept_from(listener);
    send_at_once(server.get());
    const timespec moment{.tv_sec = 0, .tv_nsec = 500'000};
    while (receive(server.get()) == "question") {
      ::nanosleep(&moment, nullptr);
      EXPECT_EQ(send(server.get(), "answer"), "6");
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  const int count = count_system_calls([&] {
    stay_on(processors[1]);
    const UniqueFd client = connect_to(address);
    send_at_once(client.get());
    const UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 1}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, client.get(), &event), 0);
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_EQ(send(client.get(), "question"), "8");
      // This process may have been kept waiting for longer than its peer.
      if (receive(client.get(), 100, MSG_DONTWAIT) == "answer") continue;
      EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 10'000), 1);
      EXPECT_EQ(receive(client.get(), 100, MSG_DONTWAIT), "answer");
    }
  });
  int status = 0;
  EXPECT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  if (count < 0) GTEST_SKIP() << "a process may not look at its child";
  EXPECT_LE(count, 6 * kRounds);
}

// Beside programs that compute it is left to the kernel how a process waits, by the same calls as
// without the library. What keeps the turn that is given to the peer is who looks at the calls.
constexpr int kMayNotLook = -1000;
int calls_of_waits(bool polls, bool& counts) {
  constexpr int kRounds = 50;
  constexpr int kQuickRounds = 30;
  constexpr std::int64_t kAsLongAsItCounts = 900'000'000;
  const unsigned processor = allowed_processors().front();
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  const pid_t peer = ::fork();
  if (peer == 0) {
    ::alarm(60);
    stay_on(processor);
    const UniqueFd server = accept_from(listener);
    send_at_once(server.get());
    const timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
    for (int i = 0; receive(server.get()) == "question"; ++i) {
      if (i >= kQuickRounds) ::nanosleep(&moment, nullptr);
      EXPECT_EQ(send(server.get(), "answer"), "6");
    }
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  std::int64_t kept_at = 0;
  UniqueFd client;
  const auto round = [&] {
    EXPECT_EQ(send(client.get(), "question"), "8");
    pollfd asked{.fd = client.get(), .events = POLLIN, .revents = 0};
    if (polls) {
      EXPECT_EQ(::poll(&asked, 1, 10'000), 1);
    }
    EXPECT_EQ(receive(client.get()), "answer");
  };
  const int count = count_system_calls(
      [&] {
        for (int i = 0; i < kRounds; ++i) round();
      },
      [&] {
        stay_on(processor);
        client = connect_to(address);
        send_at_once(client.get());
        for (int i = 0; i < 2 * kQuickRounds; ++i) round();
      },
      [&](std::uint64_t number) {
        if (number != SYS_sched_yield || kept_at != 0) return;
        const timespec long_turn{.tv_sec = 0, .tv_nsec = 50'000'000};
        ::nanosleep(&long_turn, nullptr);
        kept_at = monotonic_ns();
      });
  counts = monotonic_ns() - kept_at < kAsLongAsItCounts;
  int status = 0;
  EXPECT_EQ(::waitpid(peer, &status, 0), peer);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return count < 0 ? kMayNotLook : count - (polls ? 3 : 2) * kRounds;
}

TEST(Calls, WaitsBesideProgramsThatComputeCostNoMoreSystemCalls) {
  if (over_packets()) return;
  for (const bool polls : {false, true}) {
    int more = 0;
    bool counts = false;
    for (int i = 0; i < 20 && !counts; ++i) {
      more = calls_of_waits(polls, counts);
      if (more == kMayNotLook || !preloaded()) break;
    }
    if (more == kMayNotLook) GTEST_SKIP() << "a process may not look at its child";
    ASSERT_TRUE(counts || !preloaded());
    // Now and then the ring is tried.
    EXPECT_LE(more, 15) << (polls ? "polls" : "receives");
  }
}

}  // namespace
}  // namespace farcall::preload
