// SPDX-License-Identifier: Apache-2.0
//
// Readiness is the truth, also where a program waits by system calls of its own, and each
// descriptor has its turn. As contract_test.cpp, these run as they are and with the library
// preloaded.
#include "readiness.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "children.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload::readiness {
namespace {

// --- waits that the library does not see

// By a system call of the program's own, which cannot be seen.
TEST(UnseenWait, InASetIsWoken) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  for (int i = 0; i < 20; ++i) {
    pair.put();
    epoll_event event{};
    ASSERT_EQ(kernel(SYS_epoll_pwait, set.get(), &event, 1, kLongest, nullptr, 8), 1) << i;
    EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
    pair.take();
  }
}

TEST(UnseenWait, InASetThatNobodyKnowsTheMakerOfIsWoken) {
  const Pair pair;
  const UniqueFd set(static_cast<int>(kernel(SYS_epoll_create1, EPOLL_CLOEXEC)));
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  for (int i = 0; i < 5; ++i) {
    pair.put();
    epoll_event event{};
    ASSERT_EQ(kernel(SYS_epoll_pwait, set.get(), &event, 1, kLongest, nullptr, 8), 1) << i;
    pair.take();
  }
}

TEST(UnseenWait, OnASocketThatHasLeftItsSetIsWoken) {
  const Pair pair;
  UniqueFd set = new_set();
  for (const bool close : {false, true}) {
    add(set.get(), pair.server.get());
    exchange(pair, set.get());
    if (close)
      set.reset();
    else
      EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, pair.server.get(), nullptr), 0);
    pair.put();
    EXPECT_TRUE(readable_for_kernel(pair.server.get()));
    pair.take();
  }
}

#ifdef SYS_epoll_wait
constexpr long kCallOfEpollWait = SYS_epoll_wait;
#else
constexpr long kCallOfEpollWait = SYS_epoll_pwait;
#endif

// A thread that sleeps in a set which another closes comes back to a set that is another's by then.
TEST(UnseenWait, InAClosedSetDoesNotHarmTheNextOne) {
  const UniqueFd bell(::eventfd(0, EFD_CLOEXEC));
  UniqueFd set = new_set();
  const Pair first;
  add(set.get(), bell.get());
  add(set.get(), first.server.get());
  std::atomic<long> sleeper{0};
  std::thread waiter([&, fd = set.get()] {
    sleeper = kernel(SYS_gettid);
    EXPECT_EQ(wait(fd, 60'000), EPOLLIN);
  });
  // Asleep in the kernel: in that very system call.
  std::string call;
  for (int i = 0; i < 10'000 && call.rfind(std::to_string(kCallOfEpollWait) + " ", 0) != 0; ++i) {
    ::usleep(1000);
    std::ifstream file("/proc/self/task/" + std::to_string(sleeper) + "/syscall");
    std::getline(file, call);
  }
  set.reset();
  const UniqueFd next = new_set();
  const UniqueFd other_bell(::eventfd(0, EFD_CLOEXEC));
  add(next.get(), other_bell.get());
  const std::uint64_t one = 1;
  EXPECT_EQ(::write(bell.get(), &one, sizeof one), 8);
  waiter.join();
  const Pair pair;
  add(next.get(), pair.server.get());
  exchange(pair, next.get());
  pair.put();
  if (preloaded()) {
    EXPECT_FALSE(readable_for_kernel(pair.server.get()));
  }
  EXPECT_EQ(wait(next.get()), EPOLLIN);
}

// Calls by their numbers, through the C library.
class NumberedWait : public ::testing::TestWithParam<long> {};

TEST_P(NumberedWait, IsWoken) {
  const Pair pair;
  const int fd = pair.server.get();
  const UniqueFd set(static_cast<int>(::syscall(SYS_epoll_create1, EPOLL_CLOEXEC)));
  for (int i = 0; i < 20; ++i) {
    if (GetParam() == SYS_epoll_pwait && i == 0) {
      epoll_event event{.events = EPOLLIN, .data = {.u64 = kToken}};
      ASSERT_EQ(::syscall(SYS_epoll_ctl, set.get(), EPOLL_CTL_ADD, fd, &event), 0);
    }
    pair.put();
    timespec limit{.tv_sec = kLongest / 1000, .tv_nsec = 0};
    if (GetParam() == SYS_epoll_pwait) {
      epoll_event event{};
      ASSERT_EQ(::syscall(SYS_epoll_pwait, set.get(), &event, 1, kLongest, nullptr, 8), 1) << i;
      EXPECT_EQ(event.events, static_cast<std::uint32_t>(EPOLLIN));
    } else if (GetParam() == SYS_ppoll) {
      pollfd one{.fd = fd, .events = POLLIN, .revents = 0};
      ASSERT_EQ(::syscall(SYS_ppoll, &one, 1, &limit, nullptr, 8), 1) << i;
      EXPECT_EQ(one.revents, POLLIN);
    } else {
      fd_set read;
      FD_ZERO(&read);
      FD_SET(fd, &read);
      ASSERT_EQ(::syscall(SYS_pselect6, fd + 1, &read, nullptr, nullptr, &limit, nullptr), 1) << i;
      EXPECT_TRUE(FD_ISSET(fd, &read));
    }
    pair.take();
  }
}

std::string name_of_number(const ::testing::TestParamInfo<long>& test) {
  return test.param == SYS_epoll_pwait ? "Epoll" : test.param == SYS_ppoll ? "Poll" : "Select";
}
INSTANTIATE_TEST_SUITE_P(By, NumberedWait,
                         ::testing::Values(SYS_epoll_pwait, SYS_ppoll, SYS_pselect6),
                         name_of_number);

// --- who is told first

constexpr int kManyCalls = 10'000;

TEST(Fairness, AnEventOfTheKernelIsToldBesideABusySocket) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  pair.put(50);
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC));
  add(set.get(), bell.get(), EPOLLIN, 1);
  bool told = false;
  for (int i = 0; i < kManyCalls && !told; ++i) {
    pair.put();
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
    told = event.data.u64 == 1;
    if (!told) pair.take();
  }
  EXPECT_TRUE(told);
}

TEST(Fairness, ABusySocketIsToldBesideAnEventOfTheKernel) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  const UniqueFd bell(::eventfd(1, EFD_CLOEXEC));
  add(set.get(), bell.get(), EPOLLIN, 1);
  std::array<int, 2> told{};
  for (int i = 0; i < 1000; ++i) {
    pair.put();
    bool taken = false;
    for (int call = 0; call < 100 && !taken; ++call) {
      epoll_event event{};
      ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
      taken = event.data.u64 == kToken;
      ++told[taken ? 0 : 1];
    }
    ASSERT_TRUE(taken) << "round " << i;
    pair.take();
  }
  EXPECT_EQ(told[0], 1000);
  EXPECT_GT(told[1], 0);
}

TEST(Fairness, OfManyBusySocketsEachHasItsTurn) {
  constexpr std::size_t kSockets = 5;
  const std::array<Pair, kSockets> pairs;
  const UniqueFd set = new_set();
  for (std::size_t i = 0; i < kSockets; ++i) {
    add(set.get(), pairs[i].server.get(), EPOLLIN, i);
    for (int round = 0; round < 20; ++round) {
      pairs[i].put();
      epoll_event event{};
      ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
      pairs[i].take();
    }
  }
  // Three of them always have something, two never.
  for (std::size_t i = 0; i < 3; ++i) pairs[i].put();
  std::array<int, kSockets> told{};
  for (int i = 0; i < 300; ++i) {
    epoll_event event{};
    ASSERT_EQ(::epoll_wait(set.get(), &event, 1, kLongest), 1);
    ++told[event.data.u64];
  }
  for (std::size_t i = 0; i < 3; ++i) EXPECT_GE(told[i], 75) << i;
  EXPECT_EQ(told[3] + told[4], 0);
}

TEST(Fairness, RoomToSendIsToldInEveryCallBesideABusySocket) {
  const Pair pair;
  const UniqueFd set = new_set();
  add(set.get(), pair.server.get());
  exchange(pair, set.get());
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);
  add(set.get(), writer.get(), EPOLLOUT, 1);
  for (int i = 0; i < 100; ++i) {
    pair.put();
    epoll_event events[4];
    ASSERT_EQ(::epoll_wait(set.get(), events, 4, kLongest), 2) << "round " << i;
    pair.take();
  }
  // No longer asked for: the busy socket alone.
  epoll_event nothing{.events = 0, .data = {.u64 = 1}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, writer.get(), &nothing), 0);
  exchange(pair, set.get());
}

// --- what was told of

// Answers each message on `connections` until they end. Returns how often a socket that was told of
// had nothing, or -1.
int answer_all(const std::vector<UniqueFd>& connections, std::size_t asked, std::size_t answered,
               int rounds, bool begins) {
  const UniqueFd set = new_set();
  const std::string answer(answered, 'a');
  std::vector<std::size_t> missing(connections.size(), asked);
  std::vector<int> left(connections.size(), rounds);
  std::vector<int> late(connections.size(), 0);
  const auto send_answer = [&](std::size_t which) {
    return ::send(connections[which].get(), answer.data(), answered, MSG_NOSIGNAL) ==
           static_cast<ssize_t>(answered);
  };
  for (std::size_t i = 0; i < connections.size(); ++i) {
    const int fd = connections[i].get();
    if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) return -1;
    add(set.get(), fd, EPOLLIN, i);
    if (begins && !send_answer(i)) return -1;
  }
  int in_vain = 0;
  for (std::size_t open = connections.size(); open != 0;) {
    std::array<epoll_event, 16> events;
    const int count = ::epoll_wait(set.get(), events.data(), events.size(), kLongest);
    if (count <= 0) return -1;
    for (int i = 0; i < count; ++i) {
      const std::size_t which = events[static_cast<std::size_t>(i)].data.u64;
      char bytes[400];
      const auto begun = std::chrono::steady_clock::now();
      const ssize_t got = ::recv(connections[which].get(), bytes, missing[which], 0);
      if (got < 0 && errno == EAGAIN) {
        // A peer that has no processor in the middle of taking back is waited for ten milliseconds,
        // and no longer after a few times in vain.
        if (std::chrono::steady_clock::now() - begun >= std::chrono::milliseconds(10))
          ++late[which];
        else if (late[which] < 3)
          ++in_vain;
        continue;
      }
      if (got <= 0) return -1;
      missing[which] -= static_cast<std::size_t>(got);
      if (missing[which] != 0) continue;
      missing[which] = asked;
      const bool last = --left[which] == 0;
      if (!(begins && last) && !send_answer(which)) return -1;
      if (!last) continue;
      ::epoll_ctl(set.get(), EPOLL_CTL_DEL, connections[which].get(), nullptr);
      --open;
    }
  }
  return in_vain;
}

// A peer that sends and goes to sleep takes back what has not been read. Who has been told of it
// finds it all the same, in memory or in the kernel.
TEST(Readiness, WhatWasToldOfIsThere) {
  constexpr int kPeers = 3;
  constexpr int kEach = 8;
  constexpr int kRounds = 3000;
  Address address;
  const UniqueFd listener = listen_on_loopback(address);
  pid_t children[kPeers];
  for (pid_t& child : children)
    child = in_child([&] {
      std::vector<UniqueFd> connections;
      for (int i = 0; i < kEach; ++i) connections.push_back(connect_to(address));
      EXPECT_EQ(answer_all(connections, 230, 45, kRounds, true), 0);
    });
  std::vector<UniqueFd> connections;
  for (int i = 0; i < kPeers * kEach; ++i) connections.push_back(accept_from(listener));
  EXPECT_EQ(answer_all(connections, 45, 230, kRounds, false), 0);
  for (const pid_t child : children) EXPECT_EQ(exit_status(child), 0);
}

// What there is to read or to write has another name each.
TEST(Readiness, IsToldByItsOtherNameToo) {
  const WaitingPeer peer;
  const UniqueFd set = new_set();
  peer.put_there();
  add(set.get(), peer.server.get(), EPOLLRDNORM);
  EXPECT_EQ(wait(set.get()), EPOLLRDNORM);
  epoll_event event{.events = EPOLLWRNORM, .data = {.u64 = kToken}};
  EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, peer.server.get(), &event), 0);
  EXPECT_EQ(wait(set.get()), EPOLLWRNORM);
  peer.take();
}

// Nobody can tell by the events whose they are, so each may be any of them.
TEST(Readiness, OfManyEndsIsToldWhereAllAreRegisteredAlike) {
  constexpr int kMany = 64;
  const UniqueFd set = new_set();
  std::vector<UniqueFd> servers;
  for (int i = 0; i < kMany; ++i) {
    preload::Pair pair(false);
    add(set.get(), pair.server.get(), EPOLLIN | EPOLLRDHUP);
    servers.push_back(std::move(pair.server));
  }
  std::array<epoll_event, 2 * kMany> events{};
  const int count = ::epoll_wait(set.get(), events.data(), 2 * kMany, kLongest);
  EXPECT_EQ(count, kMany);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = events[static_cast<std::size_t>(i)];
    EXPECT_EQ(event.events & ~std::uint32_t{EPOLLHUP}, EPOLLIN | EPOLLRDHUP);
    EXPECT_EQ(event.data.u64, kToken);
  }
}

}  // namespace
}  // namespace farcall::preload::readiness
