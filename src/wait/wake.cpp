// SPDX-License-Identifier: Apache-2.0
//
// How a peer that sleeps is woken, and what that takes.
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "farcall/wait.hpp"

namespace farcall {
namespace {

// A wake that takes longer, in ticks, may be one for which much is to be done; such as cost so much
// of this side's own time, in ns, are counted.
#if defined(__x86_64__)
constexpr std::uint64_t kLongWake = 150'000;
#else
constexpr std::uint64_t kLongWake = 50'000;
#endif
constexpr std::int64_t kCostlyWake = 200'000;
constexpr std::uint8_t kWakesToMeasure = 16;

// 50 us, 100 us ... 1.6 ms.
constexpr std::int64_t kShortestWaitForMemory = 50'000;
constexpr std::int64_t kLongestWaitForMemory = 1'600'000;

std::int64_t own_processor_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

void futex_wake(std::atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

void Waiter::finish(WaitState& mine, WaitState& peer) noexcept {
  // release: pairs with the acquire in gone() and sleep().
  mine.state.store(WaitState::kFinished, std::memory_order_release);
  full_fence();  // pairs with the one in park()
  std::uint32_t parked = WaitState::kOnFutex;
  if (peer.parked.compare_exchange_strong(parked, WaitState::kAwake, std::memory_order_relaxed))
    futex_wake(peer.parked);
}

// Whoever has taken the word rings once for it; a hostile peer rings without a reason.
void Waiter::leave_descriptor(WaitState& mine) noexcept {
  if (!std::exchange(on_descriptor_, false)) return unpark(mine);
  if (mine.parked.exchange(WaitState::kAwake, std::memory_order_relaxed) == WaitState::kAwake)
    ++due_;
  due_ = std::max(due_, 0);
}

void Waiter::take_doorbells() noexcept {
  due_ -= static_cast<int>(drain_.take(drain_.context, lifeline_));
}

bool Waiter::finish_poll(WaitState& mine) noexcept {
  leave_descriptor(mine);
  take_doorbells();
  due_ = std::max(due_, 0);
  return due_ != 0;
}

unsigned drop_doorbells(void*, int lifeline) noexcept {
  // More than a socket holds of single bytes. A peer that sends as fast as this reads is not read
  // to the end: what is left makes the next sleep end at once, and that looks at the clock.
  constexpr int kMostReads = 16;
  char rings[64];
  unsigned came = 0;
  // Not recv(2), which the C library makes a point of cancellation.
  for (int i = 0; i < kMostReads; ++i) {
    const long got =
        ::syscall(SYS_recvfrom, lifeline, rings, sizeof rings, MSG_DONTWAIT, nullptr, nullptr);
    if (got > 0) came += static_cast<unsigned>(got);
    if (got != sizeof rings) break;
  }
  return came;
}

[[gnu::hot]] void Waiter::wake_sleeper(WaitState& mine, WaitState& peer,
                                       std::uint32_t parked) noexcept {
  note_processor(mine);
  // Exchanged, so that one sleep is woken once; and only the one that was seen after the fence: who
  // has begun another meanwhile has looked since, and is not to be woken for nothing.
  if (!peer.parked.compare_exchange_strong(parked, WaitState::kAwake, std::memory_order_relaxed))
    return;
  after_sleep_ = AfterSleep::peers;
  observe::note_wake(observed_);
  // Unknown values come from a hostile peer.
  const std::uint32_t how = parked & ((1U << WaitState::kHowBits) - 1);
  rang_bell_ = how == WaitState::kOnBell;
  switch (how) {
    case WaitState::kOnFutex: futex_wake(peer.parked); break;
    case WaitState::kOnBell:
      peer.bell.fetch_add(1, std::memory_order_relaxed);  // who sleeps there looks again
      futex_wake(peer.bell);
      break;
    case WaitState::kOnDescriptor: ring_doorbell(); break;
    default: break;
  }
}

// Where there is no memory for a doorbell, nobody would ring again: the end of the socket, which
// takes none, wakes as well.
[[gnu::hot]] void Waiter::ring_doorbell() noexcept {
  const char ring = 0;
  const int saved = errno;
  for (std::int64_t pause = kShortestWaitForMemory;; pause *= 2) {
    // Not send(2), which the C library makes a point of cancellation.
    if (::syscall(SYS_sendto, doorbell_, &ring, 1, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) >= 0) {
      // Only this thread changes it.
      std::atomic_ref(doorbells_).store(doorbells_ + 1, std::memory_order_release);
      break;
    }
    if (errno == EAGAIN) break;                   // a full socket has a doorbell in it already
    deaf_ = errno != ENOBUFS && errno != ENOMEM;  // a closed one tells that nobody will answer
    if (deaf_) break;
    if (pause > kLongestWaitForMemory) {
      deaf_ = true;
      ::syscall(SYS_shutdown, doorbell_, SHUT_WR);
      break;
    }
    const timespec a_while{.tv_sec = 0, .tv_nsec = pause};
    ::syscall(SYS_nanosleep, &a_while, nullptr);
  }
  errno = saved;
}

[[gnu::hot]] void Waiter::wake_parked(WaitState& mine, WaitState& peer,
                                      std::uint32_t parked) noexcept {
  if (wakes_to_measure_ != 0) [[unlikely]]
    return wake_and_measure(mine, peer, parked);
  const std::uint64_t before = ticks();
  wake_sleeper(mine, peer, parked);
  const std::uint64_t took = ticks() - before;
  waking_ += took;
  if (took > kLongWake && measures_) [[unlikely]]
    wakes_to_measure_ = kWakesToMeasure;
}

// The kernel walks over all who wait at the socket, in the name of who rings it: these may be many.
void Waiter::wake_and_measure(WaitState& mine, WaitState& peer, std::uint32_t parked) noexcept {
  const std::int64_t work_before = own_processor_ns();
  const std::int64_t start = monotonic_ns();
  const std::uint64_t before = ticks();
  wake_sleeper(mine, peer, parked);
  const std::uint64_t took = ticks() - before;
  const std::int64_t passed = std::max<std::int64_t>(monotonic_ns() - start, 1);
  const std::int64_t work = std::min(own_processor_ns() - work_before, passed);
  waking_ += static_cast<std::uint64_t>(
      static_cast<double>(took) * static_cast<double>(passed - work) / static_cast<double>(passed));
  if (work > kCostlyWake) {
    wakes_to_measure_ = kWakesToMeasure;
    costly_wakes_ = std::min<std::uint8_t>(costly_wakes_ + 2, kTooCostly);
  } else {
    --wakes_to_measure_;
    if (costly_wakes_ > 0) --costly_wakes_;
  }
}

}  // namespace farcall
