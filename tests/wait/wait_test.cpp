// SPDX-License-Identifier: Apache-2.0
#include "farcall/wait.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "farcall/socket.hpp"

namespace farcall {
namespace {

using std::chrono::milliseconds;
using namespace std::chrono_literals;

// Two sides in one process, as two threads use them.
struct Shared {
  WaitState mine{};
  WaitState peers{};
  std::atomic<bool> word{false};
  std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();

  [[nodiscard]] bool ready() const { return word.load(std::memory_order_acquire); }
};

class WaitIn : public testing::TestWithParam<WaitMode> {};
INSTANTIATE_TEST_SUITE_P(EveryMode, WaitIn,
                         testing::Values(WaitMode::spin, WaitMode::adaptive, WaitMode::block),
                         [](const auto& mode) { return std::string(to_string(mode.param)); });

TEST_P(WaitIn, ReturnsAtOnceWhenReady) {
  Shared shared;
  shared.word = true;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  EXPECT_EQ(
      waiter.wait(shared.mine, shared.peers, Deadline::never(), [&] { return shared.ready(); }),
      Outcome::ok);
}

TEST_P(WaitIn, DoesNotWaitWhenToldNotTo) {
  Shared shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::now(), [&] { return shared.ready(); }),
            Outcome::would_block);
}

TEST_P(WaitIn, EndsAtTheDeadlineAndNotBefore) {
  Shared shared;
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
    Shared shared;
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
    Shared shared;
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
  Shared shared;
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
  Shared shared;
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
  Shared shared;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  const NoDescriptors limit;
  shared.lifeline.second.reset();
  for (const Deadline deadline : {Deadline::now(), Deadline::after(40s)})
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, deadline, [&] { return shared.ready(); }),
              Outcome::peer_gone);
}

// The doorbell is in front of what tells of the death.
TEST(Waiter, WithoutDescriptorsToPollLearnsOfADeathAfterADoorbell) {
  Shared shared;
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
    Shared shared;
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
    Shared shared;
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
  Shared shared;
  shared.lifeline.second.reset();
  shared.word = true;
  Waiter waiter(shared.lifeline.first.get(), GetParam());
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::now(), [&] { return shared.ready(); }),
            Outcome::ok);
}

TEST(Waiter, WhatComesWhileTheSleeperMovesToTheDescriptorIsNoTimeout) {
  Shared shared;
  Waiter waiter(shared.lifeline.first.get(), WaitMode::block);
  EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::never(),
                        [&] { return shared.mine.parked == WaitState::kOnDescriptor; }),
            Outcome::ok);
}

// Who may not be cancelled in the sleep may be, or not, afterwards as before.
TEST_P(WaitIn, LeavesTheThreadAsCancellableAsItWas) {
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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

// The kernel ends a sleep also by handlers that tell nothing.
TEST(Waiter, SleeperIsInterruptedBySignals) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  for (const milliseconds pause : {5ms, 60ms}) {
    Shared shared;
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
  Shared shared;
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
    Shared shared;
    Waiter waiter(shared.lifeline.first.get(), WaitMode::adaptive);
    EXPECT_EQ(waiter.wait(shared.mine, shared.peers, Deadline::after(1ms), [] { return false; }),
              Outcome::timed_out);
    EXPECT_NE(shared.mine.processor, shared.peers.processor) << processor;
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Waiter, IdleSleeperTakesNoProcessorTime) {
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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
  Shared shared;
  const char ring = 0;
  while (::send(shared.lifeline.second.get(), &ring, 1, MSG_DONTWAIT) == 1) continue;
  Waiter waiter(shared.lifeline.first.get());
  waiter.finish_poll(shared.mine);
  pollfd entry{.fd = waiter.poll_descriptor(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 0);
}

// The descriptor is readable all the time; who waits looks at the clock all the same.
TEST_P(WaitIn, APeerThatRingsWithoutEndDoesNotPutOffTheDeadline) {
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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
  Shared shared;
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

TEST(Outcomes, HaveNamesAndErrnos) {
  EXPECT_EQ(to_string(Outcome::peer_gone), "peer gone");
  EXPECT_EQ(to_errno(Outcome::ok), 0);
  EXPECT_EQ(to_errno(Outcome::would_block), EAGAIN);
  EXPECT_EQ(to_errno(Outcome::timed_out), ETIMEDOUT);
  EXPECT_EQ(to_errno(Outcome::interrupted), EINTR);
  EXPECT_EQ(to_errno(Outcome::finished), EPIPE);
  EXPECT_EQ(to_errno(Outcome::peer_gone), ECONNRESET);
  EXPECT_EQ(to_errno(Outcome::broken), EPROTO);
  EXPECT_EQ(to_errno(Outcome::too_big), EMSGSIZE);
  EXPECT_EQ(to_errno(Outcome::dropped), ECONNABORTED);
}

TEST(Deadline, NeverOverflows) {
  EXPECT_TRUE(Deadline::after(std::chrono::nanoseconds::max()).is_never());
  const auto most = std::chrono::nanoseconds::max();
  EXPECT_TRUE(Deadline::after(most - 1ns).is_never());
  EXPECT_TRUE(Deadline::after(most - std::chrono::nanoseconds(monotonic_ns() - 1)).is_never());
  const Deadline far = Deadline::after(most - std::chrono::nanoseconds(monotonic_ns()) - 1h);
  EXPECT_FALSE(far.is_never());
  EXPECT_GT(far, Deadline::after(24h));
  EXPECT_TRUE(Deadline::after(-1s).is_now());
}

TEST(Deadline, HasAMomentThatTheKernelTakes) {
  for (const std::int64_t at : {std::int64_t{-1}, INT64_MIN}) {
    EXPECT_GE(Deadline(at).moment().tv_sec, 0);
    EXPECT_GE(Deadline(at).moment().tv_nsec, 0);
    EXPECT_FALSE(Deadline(at).is_now()) << "that would not be a deadline that has passed";
    EXPECT_LT(Deadline(at), Deadline(monotonic_ns()));
    EXPECT_EQ(Deadline(at).left().tv_nsec, 0);
  }
}

}  // namespace
}  // namespace farcall
