// SPDX-License-Identifier: Apache-2.0
//
// What ends a wait, and what does not.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "wait/sides.hpp"

namespace farcall {
namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;
using test::Sides;

class WaitIn : public testing::TestWithParam<WaitMode> {};
INSTANTIATE_TEST_SUITE_P(EveryMode, WaitIn,
                         testing::Values(WaitMode::spin, WaitMode::adaptive, WaitMode::block),
                         [](const auto& mode) { return std::string(to_string(mode.param)); });

TEST_P(WaitIn, ReturnsAtOnceWhenReady) {
  Sides shared;
  shared.word = true;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  EXPECT_EQ(
      waiter.wait(shared.mine, shared.peers, Deadline::never(), [&] { return shared.ready(); }),
      Outcome::ok);
}

TEST_P(WaitIn, DoesNotWaitWhenToldNotTo) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::now(), [&] { return shared.ready(); }),
            Outcome::would_block);
}

TEST_P(WaitIn, EndsAtTheDeadlineAndNotBefore) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  // Once before and once after the sleeper has moved from the futex to the descriptor.
  for (const milliseconds duration : {5ms, 60ms}) {
    const std::int64_t start = monotonic_ns();
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(duration),
                          [&] { return shared.ready(); }),
              Outcome::timed_out);
    EXPECT_GE(monotonic_ns() - start, std::chrono::nanoseconds(duration).count());
    EXPECT_EQ(shared.mine.parked.load(), WaitState::kAwake);
  }
}

TEST_P(WaitIn, IsEndedByAWakeAfterAnyTime) {
  for (const milliseconds pause : {0ms, 1ms, 10ms, 60ms}) {
    Sides shared;
    Waiter waiter(shared.lifeline.first.get(), GetParam());
    std::thread waker([&] {
      Waiter other(shared.lifeline.second.get(), GetParam());
      std::this_thread::sleep_for(pause);
      shared.word.store(true, std::memory_order_release);
      other.wake(shared.peers, shared.mine);
    });
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(10s),
                          [&] { return shared.ready(); }),
              Outcome::ok);
    waker.join();
  }
}

TEST_P(WaitIn, EndsSoonWhenThePeerDies) {
  for (const milliseconds pause : {0ms, 5ms, 60ms}) {
    Sides shared;
    Waiter waiter(shared.lifeline.first.get(), GetParam());
    std::int64_t died = 0;
    std::thread peer([&] {
      std::this_thread::sleep_for(pause);
      died = monotonic_ns();
      shared.lifeline.second.reset();
    });
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(40s),
                          [&] { return shared.ready(); }),
              Outcome::peer_gone);
    const std::int64_t noticed = monotonic_ns();
    peer.join();
    // Not at the deadline; how soon is measured by who waits.
    EXPECT_LT(noticed - died, std::chrono::nanoseconds(10s).count());
  }
}

// Who waits for a moment again and again, or is interrupted each time, learns of it as well.
TEST_P(WaitIn, LearnsOfADeathHoweverShortItIs) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  shared.lifeline.second.reset();
  for (const auto duration : {1us, 1000us, 10'000us})
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(duration),
                          [&] { return shared.ready(); }),
              Outcome::peer_gone);
  const SignalCount since = SignalCount::now();
  note_signal();
  EXPECT_EQ(
      waiter.wait(
          shared.mine, shared.peers, Deadline::never(), [&] { return shared.ready(); }, since),
      Outcome::peer_gone);
}

// Where a process may have no descriptors, beyond those that it has, the kernel polls none.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST_P(WaitIn, WithoutDescriptorsToPollIsNotInterrupted) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer and its companions need descriptors to look at memory";
#endif
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  const NoDescriptors limit;
  // Longer than a sleeper stays on the futex.
  EXPECT_EQ(
      waiter.wait(shared.mine, shared.peers, Deadline::after(60ms), [&] { return shared.ready(); }),
      Outcome::timed_out);
  std::thread waker([&] {
    Waiter other(shared.lifeline.second.get(), GetParam());
    std::this_thread::sleep_for(60ms);
    shared.word.store(true, std::memory_order_release);
    other.wake(shared.peers, shared.mine);
  });
  EXPECT_EQ(
      waiter.wait(shared.mine, shared.peers, Deadline::after(40s), [&] { return shared.ready(); }),
      Outcome::ok);
  waker.join();
}

TEST_P(WaitIn, WithoutDescriptorsToPollLearnsOfADeath) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  const NoDescriptors limit;
  shared.lifeline.second.reset();
  for (const Deadline deadline : {Deadline::now(), Deadline::after(40s)})
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, deadline, [&] { return shared.ready(); }),
              Outcome::peer_gone);
}

// The doorbell is in front of what tells of the death.
TEST(Waiter, WithoutDescriptorsToPollLearnsOfADeathAfterADoorbell) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), WaitMode::block);
  const NoDescriptors limit;
  ASSERT_EQ(::send(shared.lifeline.second.get(), "", 1, 0), 1);
  shared.lifeline.second.reset();
  EXPECT_EQ(
      waiter.wait(shared.mine, shared.peers, Deadline::after(40s), [&] { return shared.ready(); }),
      Outcome::peer_gone);
}

// A processor that others want as well is no measure of time: what it has worked meanwhile is. The
// least of some waits, since it may have been kept from looking.
TEST_P(WaitIn, LearnsOfADeathWithLittleWork) {
  const auto worked = [] {
    timespec used{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
  };
  std::chrono::nanoseconds least = 1h;
  for (int i = 0; i < 3 && least >= 30ms; ++i) {
    Sides shared;
    Waiter waiter(shared.lifeline.first.get(), GetParam());
    shared.lifeline.second.reset();
    const auto before = worked();
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(40s), [] { return false; }),
              Outcome::peer_gone);
    least = std::min<std::chrono::nanoseconds>(least, worked() - before);
  }
  EXPECT_LT(least, 30ms);
}

TEST_P(WaitIn, EndsWhenThePeerSaysThatItIsDone) {
  for (const milliseconds pause : {0ms, 5ms, 60ms}) {
    Sides shared;
    Waiter waiter(shared.lifeline.first.get(), GetParam());
    std::thread peer([&] {
      Waiter other(shared.lifeline.second.get(), GetParam());
      std::this_thread::sleep_for(pause);
      shared.peers.state.store(WaitState::kFinished, std::memory_order_release);
      other.wake(shared.peers, shared.mine);
    });
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(10s),
                          [&] { return shared.ready(); }),
              Outcome::peer_gone);
    peer.join();
  }
}

TEST_P(WaitIn, PrefersWhatIsReadyToThePeersDeath) {
  Sides shared;
  shared.lifeline.second.reset();
  shared.word = true;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::now(), [&] { return shared.ready(); }),
            Outcome::ok);
}

TEST(Waiter, WhatComesWhileTheSleeperMovesToTheDescriptorIsNoTimeout) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), WaitMode::block);
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::never(),
                        [&] { return shared.mine.parked == WaitState::kOnDescriptor; }),
            Outcome::ok);
}

// Who may not be cancelled in the sleep may be, or not, afterwards as before.
TEST_P(WaitIn, LeavesTheThreadAsCancellableAsItWas) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  for (const int state : {PTHREAD_CANCEL_ENABLE, PTHREAD_CANCEL_DISABLE}) {
    int usual = 0;
    ASSERT_EQ(::pthread_setcancelstate(state, &usual), 0);
    // Long enough for the sleeper to move to the descriptor.
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(60ms), [] { return false; }),
              Outcome::timed_out);
    int after = -1;
    ASSERT_EQ(::pthread_setcancelstate(usual, &after), 0);
    EXPECT_EQ(after, state);
  }
}

// A cancellation that is pending is left to whoever made the waiter say otherwise.
TEST_P(WaitIn, IsNoPointOfCancellation) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  std::atomic<bool> came_back{false};
  std::thread([&] {
    ::pthread_cancel(::pthread_self());
    // As above.
    const Outcome outcome =
        waiter.wait(shared.mine, shared.peers, Deadline::after(60ms), [] { return false; });
    came_back = outcome == Outcome::timed_out;
    ::pthread_testcancel();
    came_back = false;
  }).join();
  EXPECT_TRUE(came_back);
}

TEST_P(WaitIn, IsOneWhereItsThreadMayBeCancelled) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  waiter.set_cancellable(true);
  std::atomic<bool> came_back{false};
  std::thread([&] {
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
    ::pthread_cancel(::pthread_self());
    (void)waiter.wait(shared.mine, shared.peers, Deadline::after(20s), [] { return false; });
    came_back = true;
  }).join();
  EXPECT_FALSE(came_back);
}

// One signal, sent once, ends a wait at whatever moment of it: also between two phases of it.
TEST_P(WaitIn, IsEndedByAnyHandlerThatTellsOfItself) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer runs handlers when it pleases";
#endif
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { note_signal(); };
  const char* text = std::getenv("FARCALL_SIGNAL_ROUNDS");
  const int rounds = text == nullptr ? 3000 : std::atoi(text);
  std::minstd_rand random(1);
  Sides shared;
  // With the peer on another processor, as far as is known, waiters spin.
  shared.peers.processor = 1000;
  std::atomic<int> begun{0};
  std::atomic<int> sent{0};
  const pthread_t self = ::pthread_self();
  std::thread interrupter([&] {
    for (int i = 1; i <= rounds; ++i) {
      while (begun < i) ::sched_yield();
      // Some of them at the moment in which sleepers move to the descriptor.
      const bool late = i % 100 == 0;
      const std::int64_t end = monotonic_ns() + (late ? 19'950'000 : 0) +
                               static_cast<std::int64_t>(random() % (late ? 200'000 : 150'000));
      while (monotonic_ns() < end) {
      }
      ::pthread_kill(self, SIGUSR1);
      sent = i;
    }
  });
  int lost = 0;
  Waiter with_lifeline(shared.lifeline.first.get(), GetParam());
  Waiter without(-1, GetParam());
  for (int i = 1; i <= rounds; ++i) {
    action.sa_flags = i % 2 == 0 ? SA_RESTART : 0;
    ASSERT_EQ(::sigaction(SIGUSR1, &action, i == 1 ? &before : nullptr), 0);
    const SignalCount since = SignalCount::now();
    begun = i;
    // Who has no lifeline sleeps on the futex for ever.
    Waiter& waiter = i % 4 < 2 ? with_lifeline : without;
    const Outcome outcome = waiter.wait(
        shared.mine, shared.peers, Deadline::after(10s), [&] { return shared.ready(); }, since);
    if (outcome != Outcome::interrupted) ++lost;
    ASSERT_EQ(shared.mine.parked.load(), WaitState::kAwake);
    while (sent < i || SignalCount::now() == since) ::sched_yield();
  }
  EXPECT_EQ(lost, 0);
  interrupter.join();
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_P(WaitIn, PrefersWhatIsReadyToASignal) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  const SignalCount since = SignalCount::now();
  note_signal();
  int looks = 0;
  EXPECT_EQ(waiter.wait(
                shared.mine, shared.peers, Deadline::never(), [&] { return ++looks == 2; }, since),
            Outcome::ok);
  EXPECT_EQ(waiter.wait(
                shared.mine, shared.peers, Deadline::never(), [] { return false; }, since),
            Outcome::interrupted);
  // Of those before it began nobody has asked.
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(1ms), [] { return false; }),
            Outcome::timed_out);
}

// The descriptor is readable all the time; who waits looks at the clock all the same.
TEST_P(WaitIn, APeerThatRingsWithoutEndDoesNotPutOffTheDeadline) {
  Sides shared;
  ASSERT_EQ(::send(shared.lifeline.second.get(), "", 1, 0), 1);
  struct Patience {
    std::int64_t until = monotonic_ns() + std::chrono::nanoseconds(10s).count();
    std::atomic<bool> over{false};
  } patience;
  // What it takes is there again at once.
  const auto take_nothing = [](void* context, int) noexcept {
    auto& of = *static_cast<Patience*>(context);
    if (monotonic_ns() > of.until) of.over = true;
    return 0U;
  };
  Waiter waiter(shared.lifeline.first.get(), GetParam(), {take_nothing, &patience});
  // Long enough for the sleeper to move to the descriptor.
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(60ms),
                        [&] { return patience.over.load(); }),
            Outcome::timed_out);
  EXPECT_EQ(shared.mine.parked.load(), WaitState::kAwake);
}

// No sleep on such a word lasts, and none ends by the clock.
TEST_P(WaitIn, APeerThatChangesTheWordWithoutEndDoesNotPutOffTheDeadline) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  const std::int64_t patience = monotonic_ns() + std::chrono::nanoseconds(10s).count();
  // Whoever looks has said just before that it sleeps.
  const auto change = [&] {
    shared.mine.parked = WaitState::kAwake;
    return monotonic_ns() > patience;
  };
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(60ms), change),
            Outcome::timed_out);
}

TEST_P(WaitIn, AMomentBeforeTheMachinesStartHasPassed) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  for (const std::int64_t at : {std::int64_t{-1}, -monotonic_ns(), INT64_MIN}) {
    // Each look is a round of who does not find its end.
    int looks = 0;
    EXPECT_EQ(
        waiter.wait(shared.mine, shared.peers, Deadline(at), [&] { return ++looks == 1'000'000; }),
        Outcome::timed_out);
  }
}

TEST(Waiter, SurvivesNonsenseInThePeersSide) {
  Sides shared;
  Waiter waiter(shared.lifeline.first.get());
  shared.peers.parked = 77;
  waiter.wake(shared.mine, shared.peers);
  shared.peers.parked = WaitState::kOnDescriptor;
  shared.lifeline.second.reset();
  errno = 0;
  waiter.wake(shared.mine, shared.peers);  // no SIGPIPE
  EXPECT_EQ(errno, 0) << "that is no error of who wakes";
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(20s), [] { return false; }),
            Outcome::peer_gone);
}

}  // namespace
}  // namespace farcall
