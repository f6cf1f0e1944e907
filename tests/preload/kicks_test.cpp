// SPDX-License-Identifier: Apache-2.0
//
// Bytes in memory that the kernel alone must tell of. As contract_test.cpp, these run as they are
// and with the library preloaded.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "preload/real.hpp"
#include "readiness.hpp"

namespace farcall::preload::readiness {
namespace {

// For whoever waits in it otherwise than by the library's calls.
UniqueFd new_set_of_the_kernel() {
  UniqueFd set = new_set();
  pollfd look{.fd = set.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&look, 1, 0), 0);
  return set;
}

// A receive call that waits is looked after in memory, also where the set is not.
TEST(SetOfTheKernel, IsToldOfWhatAWaitingCallHasLeft) {
  const FarPeer peer;
  const UniqueFd set = new_set_of_the_kernel();
  add(set.get(), peer.server.get());
  for (int i = 0; i < 200; ++i) {
    peer.begin('t');
    peer.take();
    peer.await_done();
    ASSERT_EQ(wait(set.get(), 2000), EPOLLIN) << i;
    peer.take();
    ASSERT_EQ(wait(set.get(), 0), 0U) << i;
  }
}

TEST(Sets, AreToldOfWhatAWaitingCallHasLeft) {
  const FarPeer peer;
  const UniqueFd sets[2] = {new_set(), new_set()};
  for (const UniqueFd& set : sets) add(set.get(), peer.server.get());
  for (int i = 0; i < 200; ++i) {
    peer.begin('t');
    peer.take();
    peer.await_done();
    for (const UniqueFd& set : sets) ASSERT_EQ(wait(set.get(), 2000), EPOLLIN) << i;
    peer.take();
    for (const UniqueFd& set : sets) ASSERT_EQ(wait(set.get(), 0), 0U) << i;
  }
}

// Another thread sleeps in the set meanwhile.
TEST(Sleepers, AreToldOfWhatAWaitingCallHasLeft) {
  const FarPeer peer;
  const UniqueFd set = new_set();
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  add(set.get(), over.get(), EPOLLIN, kToken + 1);
  add(set.get(), peer.server.get());
  exchange(peer, set.get());
  std::atomic<int> round{0};
  std::atomic<int> told{0};
  std::atomic<long> id{0};
  std::thread sleeper([&] {
    id = kernel(SYS_gettid);
    epoll_event event{};
    while (::epoll_wait(set.get(), &event, 1, kLongest) == 1 && event.data.u64 == kToken) {
      told = round.load();
      while (told == round) std::this_thread::yield();
    }
  });
  while (id == 0) std::this_thread::yield();
  for (int i = 1; i <= 50; ++i) {
    await_sleep(id);
    round = i;
    peer.begin('t');
    peer.take();
    peer.await_done();
    EXPECT_TRUE(comes([&] { return told == i; }));
    peer.take();
    round = 0;
    if (told != i) break;
  }
  EXPECT_EQ(::eventfd_write(over.get(), 1), 0);
  sleeper.join();
}

// Until there is no room.
void fill(int fd) {
  const std::string much(4096, 'y');
  while (::send(fd, much.data(), much.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
}

// What the kernel could tell of at any time it does not tell of here, until there is room.
TEST(SetOfTheKernel, TellsOfASocketOnceInACall) {
  const WaitingPeer peer;
  const Pair other;
  fill(peer.server.get());
  peer.put_there();
  const UniqueFd set = new_set_of_the_kernel();
  add(set.get(), peer.server.get());
  peer.tell('d');
  ::shutdown(other.client.get(), SHUT_WR);
  epoll_event events[4];
  ASSERT_EQ(::epoll_wait(set.get(), events, 4, 5000), 1);
  EXPECT_EQ(events[0].data.u64, kToken);
  EXPECT_EQ(events[0].events, static_cast<std::uint32_t>(EPOLLIN));
  peer.take();
  EXPECT_EQ(wait(set.get(), 0), 0U);
}

TEST(SetOfTheKernel, IsToldOfASocketThatHasRoomNoMore) {
  for (const std::uint32_t events :
       {std::uint32_t{EPOLLIN}, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT}) {
    SCOPED_TRACE(events);
    const WaitingPeer peer;
    const UniqueFd set = new_set();
    const UniqueFd outer = new_set();
    add(outer.get(), set.get());
    peer.put_there();
    add(set.get(), peer.server.get(), events);
    fill(peer.server.get());
    EXPECT_EQ(wait(outer.get(), 5000), EPOLLIN);
    EXPECT_EQ(wait(set.get(), 0), EPOLLIN);
    if (events == EPOLLIN) {
      EXPECT_EQ(wait(outer.get(), 0), EPOLLIN);
    }
    peer.take();
    EXPECT_EQ(wait(set.get(), 0), 0U);
    EXPECT_EQ(wait(outer.get(), 0), 0U);
  }
}

TEST(SetOfTheKernel, StaysArmedWhereNothingIsToldOf) {
  const WaitingPeer peer;
  const UniqueFd set = new_set_of_the_kernel();
  peer.put_there();
  add(set.get(), peer.server.get(), EPOLLIN | EPOLLONESHOT);
  peer.take();
  EXPECT_EQ(wait(set.get(), 0), 0U);
  peer.put();
  EXPECT_EQ(wait(set.get(), 5000), EPOLLIN);
  peer.take();
  peer.put();
  EXPECT_EQ(wait(set.get(), 0), 0U);
  peer.take();
}

TEST(SetOfTheKernel, TellsOfNoEndWhereItHasToldOnce) {
  const WaitingPeer peer;
  const int fd = peer.server.get();
  const UniqueFd set = new_set_of_the_kernel();
  peer.put_there();
  add(set.get(), fd, EPOLLIN | EPOLLONESHOT);
  EXPECT_EQ(wait(set.get()), EPOLLIN);
  peer.take();
  ASSERT_EQ(::shutdown(fd, SHUT_RDWR), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(wait(set.get(), i), 0U);
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kToken}};
  ASSERT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  EXPECT_EQ(wait(set.get()) & EPOLLIN, EPOLLIN);
  EXPECT_EQ(wait(set.get(), 0), 0U);
}

// What wakes by then is the library's, with a high number.
TEST(SetOfTheKernel, LeavesNumbersToAProgramThatClosesAll) {
  const pid_t child = in_child([] {
    const WaitingPeer peer;
    fill(peer.server.get());
    peer.put_there();
    const UniqueFd set = new_set_of_the_kernel();
    add(set.get(), peer.server.get());
    EXPECT_EQ(wait(set.get(), 5000), EPOLLIN);
    ASSERT_EQ(::close_range(500, ~0U, 0), 0);
    for (int number = 500; number < 1000; ++number) {
      ASSERT_EQ(::fcntl(STDIN_FILENO, F_DUPFD, number), number);
      EXPECT_EQ(::close(number), 0) << number;
    }
    peer.take();
  });
  EXPECT_EQ(exit_status(child), 0);
}

// Two sleep there, of whom one is to be told, once each time.
TEST(Sleepers, AreToldByOneEventOfASocketThatHasNoRoom) {
  const WaitingPeer peer;
  const int fd = peer.server.get();
  fill(fd);
  peer.put_there();
  const UniqueFd set = new_set();
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  add(set.get(), over.get(), EPOLLIN, kToken + 1);
  add(set.get(), fd, EPOLLONESHOT);
  std::atomic<int> told{0};
  std::atomic<long> ids[2] = {0, 0};
  std::thread threads[2];
  for (int i = 0; i < 2; ++i)
    threads[i] = std::thread([&, i] {
      ids[i] = kernel(SYS_gettid);
      epoll_event event{};
      while (::epoll_wait(set.get(), &event, 1, kLongest) == 1 && event.data.u64 == kToken) ++told;
    });
  for (std::atomic<long>& id : ids)
    while (id == 0) std::this_thread::yield();
  for (int round = 1; round <= 50; ++round) {
    for (const std::atomic<long>& id : ids) await_sleep(id);
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kToken}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
    comes([&] { return told >= round; });
    ::usleep(2000);
    EXPECT_EQ(told, round);
    if (told != round) break;
  }
  EXPECT_EQ(::eventfd_write(over.get(), 1), 0);
  for (std::thread& thread : threads) thread.join();
  peer.take();
}

// In the middle of the first call that is told of something nothing goes on until it may.
std::atomic<bool> is_in_call{false};
std::atomic<bool> may_go_on{false};
void stay_in_first_call(int) {
  if (is_in_call.exchange(true)) return;
  while (!may_go_on) ::sched_yield();
}

// Another one is told of something else meanwhile, and puts right what woke the first.
TEST(Sleepers, AreToldOnceThoughAnotherPutsRightWhatHasWokenThem) {
  struct sigaction action {};
  action.sa_handler = stay_in_first_call;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  for (const bool filled : {false, true}) {
    SCOPED_TRACE(filled);
    const WaitingPeer peer;
    const int fd = peer.server.get();
    if (filled) fill(fd);
    peer.put_there();
    const UniqueFd set = new_set();
    const UniqueFd other(::eventfd(0, EFD_CLOEXEC));
    const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
    add(set.get(), other.get(), EPOLLIN | EPOLLET, kToken + 1);
    add(set.get(), over.get(), EPOLLIN, kToken + 2);
    add(set.get(), fd, EPOLLONESHOT);
    is_in_call = may_go_on = false;
    std::atomic<int> told[3] = {0, 0, 0};
    std::atomic<long> ids[3] = {0, 0, 0};
    std::vector<std::thread> threads;
    // The third is there for what is told of twice, by an event of another file.
    for (int i = 0; i < (filled ? 3 : 2); ++i) {
      threads.emplace_back([&, i] {
        sigset_t blocked;
        sigemptyset(&blocked);
        sigaddset(&blocked, SIGUSR1);
        ids[i] = kernel(SYS_gettid);
        epoll_event event{};
        if (::epoll_pwait(set.get(), &event, 1, kLongest, &blocked) == 1)
          ++told[event.data.u64 - kToken];
      });
      while (ids[i] == 0) std::this_thread::yield();
      await_sleep(ids[i]);
      // It comes as soon as the kernel's call is over.
      EXPECT_EQ(::pthread_kill(threads.back().native_handle(), SIGUSR1), 0);
    }
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kToken}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
    while (!is_in_call) std::this_thread::yield();
    EXPECT_EQ(::eventfd_write(other.get(), 1), 0);
    comes([&] { return told[1] != 0; });
    if (filled) {
      ::usleep(20'000);
    }
    may_go_on = true;
    comes([&] { return told[0] != 0; });
    EXPECT_EQ(wait(set.get(), 0), 0U);
    EXPECT_EQ(::eventfd_write(over.get(), 1), 0);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(told[0], 1) << "of the socket";
    EXPECT_EQ(told[1], 1) << "of the other file";
    peer.take();
  }
}

void run_on_first_processor() {
  cpu_set_t allowed;
  ASSERT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::size_t first = 0;
  while (first + 1 < CPU_SETSIZE && !CPU_ISSET(first, &allowed)) ++first;
  cpu_set_t only;
  CPU_ZERO(&only);
  CPU_SET(first, &only);
  EXPECT_EQ(::sched_setaffinity(0, sizeof only, &only), 0);
}

// Runs on that processor when nobody else wants it.
void give_way_to_all() {
  run_on_first_processor();
  const sched_param none{};
  EXPECT_EQ(::sched_setscheduler(0, SCHED_IDLE, &none), 0);
}

// Two are woken, each for something else. The first one's call has no room for both, and is over
// before the second one looks.
TEST(Sleepers, AreToldOfWhatAnotherHadNoRoomFor) {
  const WaitingPeer peer;
  peer.put_there();
  const UniqueFd set = new_set();
  const UniqueFd other(::eventfd(0, EFD_CLOEXEC));
  add(set.get(), other.get(), EPOLLIN | EPOLLET, kToken + 1);
  for (int round = 0; round < 10; ++round) {
    std::atomic<int> told[2] = {0, 0};
    std::atomic<long> ids[2] = {0, 0};
    std::thread threads[2];
    for (int i = 0; i < 2; ++i)
      threads[i] = std::thread([&, i] {
        give_way_to_all();
        ids[i] = kernel(SYS_gettid);
        epoll_event event{};
        if (::epoll_wait(set.get(), &event, 1, kLongest) == 1) ++told[event.data.u64 - kToken];
      });
    for (const std::atomic<long>& id : ids) {
      while (id == 0) std::this_thread::yield();
      await_sleep(id);
    }
    std::thread wakes([&] {
      run_on_first_processor();
      EXPECT_EQ(::eventfd_write(other.get(), 1), 0);
      add(set.get(), peer.server.get());
    });
    wakes.join();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(told[0], 1) << "of the socket, round " << round;
    EXPECT_EQ(told[1], 1) << "of the other file, round " << round;
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, peer.server.get(), nullptr), 0);
    if (told[0] != 1 || told[1] != 1) break;
  }
  peer.take();
}

// Two sleep there, and what wakes them both is put right by the first one.
TEST(Sleepers, AreNotToldOfRoomForWhichTheyDoNotWait) {
  const WaitingPeer peer;
  peer.put_there();
  const UniqueFd set = new_set();
  const UniqueFd over(::eventfd(0, EFD_CLOEXEC));
  std::atomic<int> round{0};
  std::atomic<int> told{0};
  std::atomic<std::uint32_t> wrong{0};
  std::atomic<long> ids[2] = {0, 0};
  std::thread threads[2];
  for (int i = 0; i < 2; ++i)
    threads[i] = std::thread([&, i] {
      ids[i] = kernel(SYS_gettid);
      epoll_event event{};
      while (::epoll_wait(set.get(), &event, 1, kLongest) == 1 && event.data.u64 == kToken) {
        if (event.events != EPOLLIN) wrong = event.events;
        const int now = round;
        told = now;
        while (now != 0 && round == now) std::this_thread::yield();
      }
    });
  for (int i = 1; i <= 100 && wrong == 0; ++i) {
    for (const std::atomic<long>& id : ids) {
      while (id == 0) std::this_thread::yield();
      await_sleep(id);
    }
    round = i;
    add(set.get(), peer.server.get());
    EXPECT_TRUE(comes([&] { return told == i; }));
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_DEL, peer.server.get(), nullptr), 0);
    round = 0;
    if (told != i) break;
  }
  EXPECT_EQ(wrong, 0U);
  add(set.get(), over.get(), EPOLLIN, kToken + 1);
  EXPECT_EQ(::eventfd_write(over.get(), 1), 0);
  for (std::thread& thread : threads) thread.join();
  peer.take();
}

// Woken by what another thread has taken by then.
TEST(Sleepers, WaitAsLongAsIsAskedForWhereNothingComes) {
  constexpr int kTime = 500;  // milliseconds
  const timespec time{.tv_sec = 0, .tv_nsec = kTime * 1'000'000};
  const auto wait_by = [&](int way, int set, epoll_event& event) -> long {
    switch (way) {
      case 0: return ::epoll_wait(set, &event, 1, kTime);
      case 1: return ::epoll_pwait2(set, &event, 1, &time, nullptr);
      case 2: return ::syscall(SYS_epoll_pwait, set, &event, 1, kTime, nullptr, 8);
      default: return ::syscall(SYS_epoll_pwait2, set, &event, 1, &time, nullptr, 8);
    }
  };
  const WaitingPeer peer;
  for (int way = 0; way < 4; ++way) {
    SCOPED_TRACE(way);
    // It may be too late to take it; or the machine may be busy.
    bool right = false;
    bool late = false;
    for (int i = 0; i < 10 && !right; ++i) {
      const UniqueFd set = new_set();
      peer.wait_in_a_call();
      peer.put();
      std::thread later([&] {
        ::usleep(kTime * 600);
        add(set.get(), peer.server.get());
        peer.take();
      });
      const auto start = std::chrono::steady_clock::now();
      epoll_event event{};
      const long told = wait_by(way, set.get(), event);
      const auto passed = std::chrono::steady_clock::now() - start;
      later.join();
      if (told != 0) continue;
      EXPECT_GE(passed, std::chrono::milliseconds(kTime));
      right = passed < std::chrono::milliseconds(kTime * 13 / 10);
      late = late || !right;
    }
    EXPECT_TRUE(right || !late);
  }
}

}  // namespace
}  // namespace farcall::preload::readiness
