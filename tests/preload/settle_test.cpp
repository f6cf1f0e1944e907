// SPDX-License-Identifier: Apache-2.0
//
// What several threads have put, while they go to sleep at the same time. The sides are made here,
// and the kernel takes all of each.
#include "preload/settle.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"
#include "harness/eventually.hpp"
#include "one_way.hpp"
#include "preload/connection.hpp"

namespace farcall::preload {
namespace {

using namespace std::chrono_literals;

constexpr std::uint32_t kSides = 4;
constinit std::array<std::atomic<int>, kSides> reclaimed{};
constinit std::atomic<bool> kernel_has_room{true};

// As the library's: what belongs to each process stands behind what all share.
Side* sides() {
  static const Mapping memory = [] {
    Mapping all = Mapping::anonymous_shared(2 * sizeof(Side) * kMostSides);
    auto* const first = reinterpret_cast<Side*>(all.data());
    for (std::uint32_t i = 0; i < kSides; ++i) {
      const Side* const side = new (&first[i]) Side{};
      new (&side->own()) Side::Own{};
    }
    return all;
  }();
  return reinterpret_cast<Side*>(memory.data());
}

}  // namespace

std::uint32_t index_of(const Side& side) noexcept {
  return static_cast<std::uint32_t>(&side - sides());
}

// There are no sockets of datagrams.
constinit std::atomic<std::uint32_t> detail::udp_unsettled{0};
constinit thread_local bool detail::udp_has_sent = false;
void detail::udp_settle(bool) noexcept {}

bool reclaim(Side& side, int, bool) noexcept {
  ++reclaimed[index_of(side)];
  if (!kernel_has_room) return true;
  side.out().control->head.store(side.sender.position());
  return true;
}

namespace {

class Settling : public ::testing::Test {
 protected:
  Settling() {
    for (std::uint32_t i = 0; i < kSides; ++i) {
      reclaimed[i] = 0;
      directions_.push_back(std::make_unique<OneWay>(SOCK_STREAM, 4096));
      const Ring& ring = directions_[i]->ring;
      Side& side = sides()[i];
      side.generation.store(1);
      side.sender = Sender{};
      side.own().out = ring;
      directions_[i]->receiver.unwatch(ring);
      EXPECT_EQ(side.sender.way(ring), Sender::Way::ring);
    }
  }
  ~Settling() override {
    settle_everything();
    for (std::uint32_t i = 0; i < kSides; ++i) forget_put(sides()[i]);
  }
  // As send_to() does, with the sender's lock held.
  static void put_locked(Side& side) {
    std::byte byte{};
    const iovec part{.iov_base = &byte, .iov_len = 1};
    Span span(&part, 1);
    side.sender.put(side.out(), span);
    note_put(side, static_cast<int>(index_of(side)) + 3);
  }
  static void put(Side& side) {
    const Guard sending(side.send_lock);
    put_locked(side);
  }

 private:
  std::vector<std::unique_ptr<OneWay>> directions_;
};

using Settle = std::function<void()>;
class SettlingAtOnce : public Settling, public ::testing::WithParamInterface<bool> {};

// What the first has put stands before what the second has put, and goes while that looks.
TEST_P(SettlingAtOnce, EachSettlesItsOwn) {
  Side& first = sides()[0];
  Side& second = sides()[1];
  for (int i = 0; i < 50; ++i) {
    reclaimed[0] = reclaimed[1] = 0;
    std::atomic<int> ready{0};
    Guard holds(first.send_lock);
    std::thread others;
    std::thread own([&] {
      // Both threads live while the other puts, so that their numbers differ.
      while (ready != 2) std::this_thread::yield();
      put(second);
      ready = 3;
      if (GetParam())
        settle_everything();
      else
        settle_before_sleep();
      EXPECT_EQ(reclaimed[1], 1);
    });
    holds.unlock();
    others = std::thread([&] {
      put(first);
      ready = 1;
      while (ready != 3) std::this_thread::yield();
      settle_before_sleep();
      EXPECT_EQ(reclaimed[0], 1);
    });
    while (ready != 1) std::this_thread::yield();
    ASSERT_TRUE(holds.lock());
    ready = 2;
    while (ready != 3) std::this_thread::yield();
    std::this_thread::sleep_for(1ms);
    holds.unlock();
    own.join();
    others.join();
    ASSERT_EQ(detail::unsettled.load(), 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(BeforeSleepOrEnd, SettlingAtOnce, ::testing::Bool());

// Whoever sends to a peer that leaves may hold it for seconds.
TEST_F(Settling, DoesNotWaitForWhatOthersHold) {
  Side& held = sides()[0];
  put(held);
  Guard holds(held.send_lock);
  std::atomic<bool> asleep{false};
  std::thread own([&] {
    put(sides()[1]);
    settle_before_sleep();
    EXPECT_EQ(reclaimed[1], 1);
    asleep = true;
  });
  EXPECT_TRUE(test::eventually([&] { return asleep.load(); }));
  EXPECT_EQ(reclaimed[0], 0);
  holds.unlock();
  own.join();
  settle_before_sleep();
  EXPECT_EQ(reclaimed[0], 1);
}

TEST_F(Settling, LooksAgainAfterWhatTheKernelHadNoRoomFor) {
  put(sides()[0]);
  kernel_has_room = false;
  settle_before_sleep();
  EXPECT_EQ(reclaimed[0], 1);
  kernel_has_room = true;
  settle_before_sleep();
  EXPECT_EQ(reclaimed[0], 2);
  settle_before_sleep();
  EXPECT_EQ(reclaimed[0], 2);
}

// As many as are looked at at all may have to wait for room.
TEST_F(Settling, LooksAfterWhatIsNewThoughTheKernelHasRoomForNothingElse) {
  kernel_has_room = false;
  for (int i = 0; i < 1024; ++i) {
    forget_put(sides()[0]);
    put(sides()[0]);
  }
  settle_before_sleep();
  put(sides()[1]);
  kernel_has_room = true;
  settle_before_sleep();
  EXPECT_EQ(reclaimed[1], 1);
}

// Who has come into the place of one does not hide those behind it.
TEST_F(Settling, LooksAfterAllThatAreLeftWhereOneHasMadeRoom) {
  kernel_has_room = false;
  for (int i = 0; i < 1023; ++i) {
    forget_put(sides()[0]);
    put(sides()[0]);
  }
  put(sides()[2]);
  settle_before_sleep();
  put(sides()[1]);
  reclaimed[2] = 0;
  kernel_has_room = true;
  settle_before_sleep();
  EXPECT_EQ(reclaimed[1], 1);
  EXPECT_EQ(reclaimed[2], 1);
}

// Who was given up for others is no longer looked at, until there is more of it.
TEST_F(Settling, LooksAgainAfterWhatItHasGivenUpWhereMoreIsPut) {
  constexpr int kAll = 1024;
  const auto fill = [](Side& side, int places) {
    for (int i = 0; i < places; ++i) {
      forget_put(side);
      put(side);
    }
    settle_before_sleep();
  };
  kernel_has_room = false;
  put(sides()[2]);
  fill(sides()[0], kAll - 1);
  fill(sides()[1], kAll);  // each takes the place of another
  reclaimed[2] = 0;
  put(sides()[2]);
  kernel_has_room = true;
  settle_before_sleep();
  EXPECT_EQ(reclaimed[2], 1);
}

// The descriptor may be another file's afterwards.
TEST_F(Settling, LooksAtNothingAfterTheEndOfADescriptor) {
  put(sides()[0]);
  kernel_has_room = false;
  settle_before_close(3);
  EXPECT_EQ(reclaimed[0], 1);
  kernel_has_room = true;
  EXPECT_EQ(detail::unsettled.load(), 0U);
}

// The other one may have much else to do.
TEST_F(Settling, OfTwoWhoSendOnOneConnectionIsEithersToDo) {
  for (const bool sleeps_first : {true, false}) {
    reclaimed[0] = 0;
    std::atomic<int> step{0};
    std::thread other([&] {
      put(sides()[0]);
      step = 1;
      while (step != 2) std::this_thread::yield();
      if (sleeps_first) settle_before_sleep();
      step = 3;
      while (step != 4) std::this_thread::yield();
    });
    while (step != 1) std::this_thread::yield();
    put(sides()[0]);
    step = 2;
    while (step != 3) std::this_thread::yield();
    if (!sleeps_first) settle_before_sleep();
    EXPECT_EQ(reclaimed[0], 1) << sleeps_first;
    step = 4;
    other.join();
    settle_everything();
  }
}

TEST_F(Settling, LosesNoneThatIsNotedAgain) {
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < kSides; ++i)
    threads.emplace_back([&side = sides()[i], i] {
      for (int k = 0; k < 50'000; ++k) {
        const int before = reclaimed[i];
        put(side);
        settle_before_sleep();
        ASSERT_NE(reclaimed[i], before) << k;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(detail::unsettled.load(), 0U);
}

}  // namespace
}  // namespace farcall::preload
