// SPDX-License-Identifier: Apache-2.0
//
// Who sleeps: by what it is woken, what that costs, and the descriptor that others can poll for it.
#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <string>
#include <thread>

#include "wait/sides.hpp"

namespace farcall {
namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;
using test::Sides;

// The kernel ends a sleep also by handlers that tell nothing.
TEST(Waiter, SleeperIsInterruptedBySignals) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  for (const milliseconds pause : {5ms, 60ms}) {
    Sides shared;
    Waiter waiter(shared.lifeline.first.get(), WaitMode::block);
    std::atomic<bool> over{false};
    const pthread_t self = ::pthread_self();
    std::thread interrupter([&] {
      std::this_thread::sleep_for(pause);
      while (!over) {  // one signal could come before the sleep
        ::pthread_kill(self, SIGUSR1);
        std::this_thread::sleep_for(10ms);
      }
    });
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(10s),
                          [&] { return shared.ready(); }),
              Outcome::interrupted);
    over = true;
    interrupter.join();
  }
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST(Waiter, CountsWhatItHasSpunWhereTheDeadlineHasPassed) {
  Sides shared;
  observe::Half counted{};
  Waiter waiter(shared.lifeline.first.get(), WaitMode::adaptive);
  waiter.observe(&counted);
  shared.peers.processor = 1000;  // on another one, where spinning may pay
  const std::int64_t start = monotonic_ns();
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline(start - 1'000'000),
                        [&] { return shared.ready(); }),
            Outcome::timed_out);
  EXPECT_LE(static_cast<std::int64_t>(counted.spun_ns), monotonic_ns() - start);
  EXPECT_GE(static_cast<std::int64_t>(counted.spun_ns), 0);
}

// None is said before the first wait, and that must not pass for this one.
TEST(Waiter, SaysWhichProcessorItIsOnAlsoOnTheFirst) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  for (std::size_t processor = 0; processor < 2; ++processor) {
    if (!CPU_ISSET(processor, &before)) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    Sides shared;
    Waiter waiter(shared.lifeline.first.get(), WaitMode::adaptive);
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(1ms), [] { return false; }),
              Outcome::timed_out);
    EXPECT_NE(shared.mine.processor, shared.peers.processor) << processor;
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Waiter, IdleSleeperTakesNoProcessorTime) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), WaitMode::adaptive);
  const auto used = [] {
    rusage usage{};
    ::getrusage(RUSAGE_THREAD, &usage);
    return std::pair(usage.ru_nvcsw, (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1'000'000 +
                                         usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  long sleeps = 0;
  long us = 0;
  // A processor that stands still while somebody looks counts as used: the least of some waits.
  for (int i = 0; i < 5; ++i) {
    const auto before = used();
    EXPECT_EQ(
        waiter.wait(shared.mine, shared.peers, Deadline::after(1s), [&] { return shared.ready(); }),
        Outcome::timed_out);
    const auto after = used();
    sleeps = after.first - before.first;
    us = after.second - before.second;
    if (sleeps <= 10 && us < 20'000) break;
  }
  EXPECT_LE(sleeps, 10);  // a futex sleep, a descriptor sleep, hand-overs
  EXPECT_LT(us, 20'000);
}

TEST(Waiter, CanBeWaitedForWithPoll) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get());
  Waiter other(shared.lifeline.second.get());
  const auto ready = [&] { return shared.ready(); };
  ASSERT_EQ(waiter.prepare_poll(shared.mine, shared.peers, ready), Outcome::would_block);
  pollfd entry{.fd = waiter.poll_descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  shared.word = true;
  other.wake(shared.peers, shared.mine);
  EXPECT_EQ(::poll(&entry, 1, 5000), 1);
  waiter.finish_poll(shared.mine);
  EXPECT_EQ(::poll(&entry, 1, 0), 0) << "the doorbell was not taken away";
  // Nobody polls now, so nothing rings.
  other.wake(shared.peers, shared.mine);
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
  // What is ready already needs no poll.
  EXPECT_EQ(waiter.prepare_poll(shared.mine, shared.peers, ready), Outcome::ok);
  EXPECT_EQ(shared.mine.parked, WaitState::kAwake);
}

TEST(Waiter, PollDescriptorTellsOfThePeersDeath) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get());
  const auto ready = [&] { return shared.ready(); };
  ASSERT_EQ(waiter.prepare_poll(shared.mine, shared.peers, ready), Outcome::would_block);
  shared.lifeline.second.reset();
  pollfd entry{.fd = waiter.poll_descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 5000), 1);
  waiter.finish_poll(shared.mine);
  EXPECT_EQ(waiter.prepare_poll(shared.mine, shared.peers, ready), Outcome::ok);
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::now(), ready), Outcome::peer_gone);
}

// As many as no honest peer leaves there, so that what is left tells that there is a bound.
TEST(Waiter, DoesNotDrainAPeerThatRingsWithoutEnd) {
  Sides shared;
  const std::string rings(60'000, '\0');
  ASSERT_EQ(::send(shared.lifeline.second.get(), rings.data(), rings.size(), MSG_DONTWAIT),
            static_cast<ssize_t>(rings.size()));
  Waiter waiter(shared.lifeline.first.get());
  waiter.finish_poll(shared.mine);
  int left = 0;
  ASSERT_EQ(::ioctl(shared.lifeline.first.get(), FIONREAD, &left), 0);
  EXPECT_GT(left, 50'000) << "who reads until nothing is left reads as long as the peer sends";
  EXPECT_LT(left, 60'000);
}

// All the doorbells that a socket holds are gone after one look, so that they wake nobody again.
TEST(Waiter, TakesAllDoorbellsThatFitTheSocket) {
  Sides shared;
  const char ring = 0;
  while (::send(shared.lifeline.second.get(), &ring, 1, MSG_DONTWAIT) == 1) continue;
  Waiter waiter(shared.lifeline.first.get());
  waiter.finish_poll(shared.mine);
  pollfd entry{.fd = waiter.poll_descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
}

}  // namespace
}  // namespace farcall
