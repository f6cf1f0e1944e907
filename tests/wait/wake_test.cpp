// SPDX-License-Identifier: Apache-2.0
//
// Who is woken and who is not: looked at in the words themselves.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <thread>
#include <utility>

#include "farcall/socket.hpp"
#include "farcall/wait.hpp"
#include "harness/forbidden_call.hpp"
#include "wait/sleeper.hpp"

namespace farcall::wakes {
namespace {

// A peer that sleeps as `how` says, on the processor where `waiter` waited last.
struct Asleep {
  Asleep(Waiter& waiter, std::uint32_t how) {
    // Whoever waits says where it runs.
    EXPECT_EQ(waiter.wait(mine, peers, Deadline::after(std::chrono::milliseconds(1)),
                          [] { return false; }),
              Outcome::timed_out);
    peers.processor = mine.processor.load();
    peers.parked = how;
  }
  WaitState mine{};
  WaitState peers{};
};

// Who is about to publish more leaves a peer asleep that would only take the processor away; but
// it may turn to something else for ever. So the peer has to be one that looks by itself: without a
// lifeline nobody does, nor on a descriptor or a bell.
TEST(Wake, WithTheNextLeavesOnlyThoseAsleepThatLookByThemselves) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  for (const int descriptor : {-1, lifeline.first.get()})
    for (const std::uint32_t how :
         {WaitState::kOnFutex, WaitState::kOnDescriptor, WaitState::kOnBell}) {
      Waiter waiter(descriptor, WaitMode::block);
      Asleep asleep(waiter, how);
      waiter.wake_with_next(asleep.mine, asleep.peers);
      const bool left = descriptor >= 0 && how == WaitState::kOnFutex;
      EXPECT_EQ(asleep.peers.parked, left ? how : std::uint32_t{WaitState::kAwake})
          << how << " " << descriptor;
      waiter.wake_late(asleep.mine, asleep.peers);
      EXPECT_EQ(asleep.peers.parked, WaitState::kAwake);
    }
}

TEST(Wake, OfWhoRunsElsewhereIsNotPutOff) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Asleep asleep(waiter, WaitState::kOnFutex);
  asleep.peers.processor = asleep.peers.processor + 1;
  waiter.wake_with_next(asleep.mine, asleep.peers);
  EXPECT_EQ(asleep.peers.parked, WaitState::kAwake);
}

TEST(Wake, LateIsForWhoWasLeftAsleepAndOnce) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Asleep asleep(waiter, WaitState::kOnFutex);
  waiter.wake_late(asleep.mine, asleep.peers);
  EXPECT_EQ(asleep.peers.parked, WaitState::kOnFutex) << "nobody was";
  waiter.wake_with_next(asleep.mine, asleep.peers);
  waiter.wake_late(asleep.mine, asleep.peers);
  asleep.peers.parked = WaitState::kOnFutex;
  waiter.wake_late(asleep.mine, asleep.peers);
  EXPECT_EQ(asleep.peers.parked, WaitState::kOnFutex) << "that has been done";
}

TEST(Wake, ByTheEndIsForWhoSleepsOnTheFutex) {
  WaitState mine{};
  WaitState peers{};
  peers.parked = WaitState::kOnFutex;
  Waiter::finish(mine, peers);
  EXPECT_EQ(mine.state, WaitState::kFinished);
  EXPECT_EQ(peers.parked, WaitState::kAwake);
  // The socket tells those.
  peers.parked = WaitState::kOnDescriptor;
  Waiter::finish(mine, peers);
  EXPECT_EQ(peers.parked, WaitState::kOnDescriptor);
}

// Who sleeps there would look by itself after 20 ms.
TEST(Wake, ByTheEndIsAtOnce) {
  auto shortest = std::chrono::nanoseconds::max();
  for (int i = 0; i < 50 && shortest >= std::chrono::milliseconds(20); ++i) {
    const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
    WaitState sleepers{};
    WaitState peers{};
    std::thread sleeper([&] {
      Waiter waiter(lifeline.first.get(), WaitMode::block);
      const std::int64_t start = monotonic_ns();
      EXPECT_EQ(waiter.wait(sleepers, peers, Deadline::never(), [] { return false; }),
                Outcome::peer_gone);
      shortest = std::min(shortest, std::chrono::nanoseconds(monotonic_ns() - start));
    });
    while (sleepers.parked != WaitState::kOnFutex) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Waiter::finish(peers, sleepers);
    sleeper.join();
  }
  EXPECT_LT(shortest, std::chrono::milliseconds(20));
}

// Who is about to sleep on it, and has looked, does not sleep then.
TEST(Wake, ByTheBellChangesWhatIsSleptOn) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Asleep asleep(waiter, WaitState::kOnBell);
  const std::uint32_t before = asleep.peers.bell;
  waiter.wake(asleep.mine, asleep.peers);
  EXPECT_NE(asleep.peers.bell, before);
  EXPECT_EQ(asleep.peers.parked, WaitState::kAwake);
}

// A peer may be kept between taking the word and ringing: then the doorbell comes when what it
// tells of has long been read.
TEST(Wake, ByADoorbellIsKnownToBeUnderWay) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get());
  WaitState mine{};
  const WaitState peers{};
  const auto never = [] { return false; };
  EXPECT_FALSE(waiter.finish_poll(mine)) << "nobody polls";
  ASSERT_EQ(waiter.prepare_poll(mine, peers, never), Outcome::would_block);
  EXPECT_FALSE(waiter.finish_poll(mine)) << "nobody has taken the word";
  ASSERT_EQ(waiter.prepare_poll(mine, peers, never), Outcome::would_block);
  mine.parked = WaitState::kAwake;
  EXPECT_TRUE(waiter.finish_poll(mine));
  EXPECT_TRUE(waiter.finish_poll(mine));
  ASSERT_EQ(::send(lifeline.second.get(), "", 1, 0), 1);
  EXPECT_FALSE(waiter.finish_poll(mine)) << "it has come";
}

// The doorbells that have ended sleeps are not waited for afterwards.
TEST(Wake, ByADoorbellThatASleeperHasHeardIsNotUnderWay) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  WaitState sleepers{};
  WaitState peers{};
  std::atomic<bool> word{false};
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Waiter waker(lifeline.second.get(), WaitMode::block);
  for (const bool in_vain : {true, false}) {
    std::thread wakes([&] {
      while (sleepers.parked != WaitState::kOnDescriptor) std::this_thread::yield();
      if (!in_vain) word = true;
      waker.wake(peers, sleepers);
      if (!in_vain) return;
      while (sleepers.parked == WaitState::kAwake) std::this_thread::yield();
      word = true;
      waker.wake(peers, sleepers);
    });
    EXPECT_EQ(waiter.wait(sleepers, peers, Deadline::never(), [&] { return word.load(); }),
              Outcome::ok);
    wakes.join();
    word = false;
    EXPECT_FALSE(waiter.finish_poll(sleepers)) << in_vain;
  }
}

// One who has seen the first poll, and is kept before it takes the word, wakes the first only.
TEST(Wake, OfOnePollIsNotOfTheNext) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get());
  WaitState mine{};
  const WaitState peers{};
  const auto never = [] { return false; };
  ASSERT_EQ(waiter.prepare_poll(mine, peers, never), Outcome::would_block);
  const std::uint32_t first = mine.parked;
  (void)waiter.finish_poll(mine);
  ASSERT_EQ(waiter.prepare_poll(mine, peers, never), Outcome::would_block);
  EXPECT_NE(mine.parked, first);
}

// A handler that leaves by siglongjmp(3) leaves a sleep behind that nobody ends.
TEST(Wake, ByASignalChangesTheWordOfASleepOnce) {
  std::atomic<std::uint32_t> word{WaitState::kOnFutex};
  const SignalCount before = SignalCount::now();
  const Sleeper sleeper(word);
  note_signal();
  EXPECT_EQ(word, WaitState::kAwake);
  EXPECT_NE(SignalCount::now(), before);
  word = WaitState::kOnFutex;
  note_signal();
  EXPECT_EQ(word, WaitState::kOnFutex) << "somebody else's by now";
}

TEST(Wake, ByASignalIsForTheInnermostSleep) {
  std::atomic<std::uint32_t> outer{WaitState::kOnFutex};
  std::atomic<std::uint32_t> inner{WaitState::kOnFutex};
  const Sleeper sleeps(outer);
  {
    const Sleeper in_handler(inner);
    note_signal();
    EXPECT_EQ(inner, WaitState::kAwake);
    EXPECT_EQ(outer, WaitState::kOnFutex);
  }
  note_signal();
  EXPECT_EQ(outer, WaitState::kAwake);
}

// ---- doorbells for which there is no memory ----

// Answers the system calls of one thread as the kernel would without memory, for a while.
class WithoutMemory {
 public:
  // For the thread that is to be without. False: it cannot be.
  bool begin(unsigned number) {
    const std::array filter{
        sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{.len = filter.size(),
                             .filter = const_cast<sock_filter*>(filter.data())};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
    calls_ = UniqueFd(static_cast<int>(::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                                 SECCOMP_FILTER_FLAG_NEW_LISTENER, &program)));
    return static_cast<bool>(calls_);
  }
  // For another. False: no call came.
  bool answer(bool fail) {
    pollfd call{.fd = calls_.get(), .events = POLLIN, .revents = 0};
    seccomp_notif asked{};
    if (::poll(&call, 1, 10'000) != 1 ||
        ::ioctl(calls_.get(), SECCOMP_IOCTL_NOTIF_RECV, &asked) != 0)
      return false;
    seccomp_notif_resp said{};
    said.id = asked.id;
    if (fail)
      said.error = -ENOBUFS;
    else
      said.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    return ::ioctl(calls_.get(), SECCOMP_IOCTL_NOTIF_SEND, &said) == 0;
  }

 private:
  UniqueFd calls_;
};

short events_at(const UniqueFd& socket) {
  pollfd there{.fd = socket.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
  return ::poll(&there, 1, 0) < 0 ? short{0} : there.revents;
}

TEST(Wake, IsTriedAgainWhereThereWasNoMemoryForIt) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Asleep asleep(waiter, WaitState::kOnDescriptor);
  WithoutMemory kernel;
  std::latch begun(1);
  std::atomic<bool> works{false};
  std::thread waker([&] {
    works = kernel.begin(SYS_sendto);
    begun.count_down();
    if (works) waiter.wake(asleep.mine, asleep.peers);
  });
  begun.wait();
  if (works) {
    for (const bool fail : {true, true, false}) EXPECT_TRUE(kernel.answer(fail));
  }
  waker.join();
  ASSERT_TRUE(works) << "no filter of system calls can be watched here";
  EXPECT_EQ(events_at(lifeline.second), POLLIN);
}

TEST(Wake, IsByTheEndOfTheSocketWhereThereIsNoMemoryForADoorbell) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Asleep asleep(waiter, WaitState::kOnDescriptor);
  std::thread([&] {
    ASSERT_TRUE(test::forbid_call(SYS_sendto, ENOBUFS));
    waiter.wake(asleep.mine, asleep.peers);
  }).join();
  EXPECT_NE(events_at(lifeline.second) & POLLRDHUP, 0);
}

// Who has rung such a bell, and waits then, does so as cheaply as ever.
TEST(Wake, ByADoorbellThatIsThereAlreadyIsNoReasonToWaitByTheSocket) {
  const std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();
  Waiter waiter(lifeline.first.get(), WaitMode::block);
  Asleep asleep(waiter, WaitState::kOnDescriptor);
  while (::send(lifeline.first.get(), "", 1, MSG_DONTWAIT) == 1) continue;
  ASSERT_EQ(errno, EAGAIN);
  waiter.wake(asleep.mine, asleep.peers);
  std::uint32_t how = WaitState::kAwake;
  const auto ready = [&] {
    how = asleep.mine.parked;
    return how != WaitState::kAwake;
  };
  EXPECT_EQ(
      waiter.wait(asleep.mine, asleep.peers, Deadline::after(std::chrono::seconds(20)), ready),
      Outcome::ok);
  EXPECT_EQ(how, WaitState::kOnFutex);
}

// A program may forbid it to itself when the library has been loaded; what is waited for then is
// longer than any processor keeps a store to itself.
TEST(HeavyFence, TakesItsTimeWhereItIsForbidden) {
  if (!detail::kernel_fences) GTEST_SKIP() << "there is none";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!test::forbid_call(SYS_membarrier)) ::_exit(2);
    const std::int64_t start = monotonic_ns();
    asymmetric_fence_heavy();
    ::_exit(monotonic_ns() - start >= 1'000'000 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace farcall::wakes
