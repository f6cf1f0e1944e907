// SPDX-License-Identifier: Apache-2.0
//
// Datagrams in memory, with the kernel's part played by the test.
#include "preload/datagram_ring.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace farcall::preload {
namespace {

constexpr std::uint64_t kSize = 4096;

class DatagramRing : public testing::Test {
 protected:
  DatagramRing() {
    sender_.start(memory());
    receiver_.start(memory());
  }
  [[nodiscard]] DatagramMemory memory() {
    return {.control = &control_, .bytes = bytes_, .size = kSize};
  }
  bool send(const std::string& text) {
    const iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    return sender_.send(&part, 1, text.size());
  }
  std::string take(bool peek = false, std::size_t room = 70'000) {
    std::string text(room, '\0');
    const iovec part{.iov_base = text.data(), .iov_len = text.size()};
    const DatagramReceiver::Taken taken = receiver_.take(&part, 1, peek);
    length_ = taken.length;
    text.resize(taken.bytes);
    return text;
  }
  using Next = DatagramReceiver::Next;
  Next next() { return receiver_.next(); }

  alignas(128) DatagramControl control_{};
  alignas(64) std::byte bytes_[kSize]{};
  DatagramSender sender_;
  DatagramReceiver receiver_;
  std::size_t length_ = 0;
};

TEST_F(DatagramRing, BeginsWatchedSoThatAllGoesThroughTheKernel) {
  EXPECT_TRUE(receiver_.watched());
  EXPECT_FALSE(send("early"));
  EXPECT_EQ(next(), Next::none);
}

TEST_F(DatagramRing, KeepsDatagramsApartAlsoEmptyOnes) {
  receiver_.unwatch();
  for (const char* const text : {"one", "", "three"}) EXPECT_TRUE(send(text));
  for (const char* const text : {"one", "", "three"}) {
    ASSERT_EQ(next(), Next::ready);
    EXPECT_EQ(take(), text);
  }
  EXPECT_EQ(next(), Next::none);
}

TEST_F(DatagramRing, APeekTakesNothingAndAShortBufferTellsTheLength) {
  receiver_.unwatch();
  EXPECT_TRUE(send("datagram"));
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(true, 4), "data");
  EXPECT_EQ(length_, 8U);
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(false, 4), "data");
  EXPECT_EQ(next(), Next::none) << "the rest is lost, as it is in the kernel";
}

TEST_F(DatagramRing, WhatIsSentBeforeItIsWatchedIsSeenAndNothingAfter) {
  receiver_.unwatch();
  EXPECT_TRUE(send("before"));
  receiver_.watch();
  EXPECT_FALSE(send("after"));
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(), "before");
  EXPECT_EQ(next(), Next::none);
}

TEST_F(DatagramRing, LeavesToTheKernelWhatFindsNoRoom) {
  receiver_.unwatch();
  const std::string large(1000, 'x');
  unsigned sent = 0;
  while (send(large)) ++sent;
  EXPECT_EQ(sent, kSize / (1008 + 16));
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(), large);
  EXPECT_TRUE(send(large)) << "there is room again";
  EXPECT_FALSE(send(std::string(3000, 'x'))) << "it would take most of the ring";
}

TEST_F(DatagramRing, KeepsTheOrderOfBothWays) {
  receiver_.unwatch();
  EXPECT_TRUE(send("first"));
  sender_.sent_by_kernel();
  EXPECT_TRUE(send("third"));
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(), "first");
  EXPECT_EQ(next(), Next::kernel_first);
  receiver_.came_by_kernel();
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(), "third");
}

TEST_F(DatagramRing, TellsOfWhatIsSentAndNotCountedYet) {
  EXPECT_FALSE(receiver_.sender_sends());
  sender_.begin_sending();
  sender_.begin_sending();
  EXPECT_TRUE(receiver_.sender_sends());
  for (std::uint64_t i = 1; i < 3; ++i) {
    sender_.sent_by_kernel();
    sender_.end_sending();
    EXPECT_EQ(receiver_.kernel_sent(), i);
    EXPECT_EQ(receiver_.sender_sends(), i == 1);
  }
  sender_.end_sending();  // of what it was given before
  EXPECT_FALSE(receiver_.sender_sends());
}

TEST_F(DatagramRing, DoesNotWaitForWhatTheKernelHasDropped) {
  receiver_.unwatch();
  sender_.sent_by_kernel();
  sender_.sent_by_kernel();
  EXPECT_TRUE(send("next"));
  EXPECT_EQ(next(), Next::kernel_first);
  receiver_.came_by_kernel();
  EXPECT_EQ(next(), Next::kernel_first);
  receiver_.kernel_has_no_more();
  ASSERT_EQ(next(), Next::ready);
  EXPECT_EQ(take(), "next");
  EXPECT_TRUE(send("on"));
  EXPECT_EQ(next(), Next::ready);
}

TEST_F(DatagramRing, ASenderTakesBackWhatADeadReceiverHasNotRead) {
  receiver_.unwatch();
  for (int i = 0; i < 40; ++i) {  // until it wraps
    ASSERT_TRUE(send(std::string(200, static_cast<char>('a' + i % 26))));
    if (i < 38) {
      ASSERT_EQ(next(), Next::ready);
      take();
    }
  }
  EXPECT_FALSE(sender_.all_read());
  std::vector<std::string> back;
  sender_.take_back([&](const std::byte* first, std::size_t first_size, const std::byte* second,
                        std::size_t second_size) {
    back.emplace_back(reinterpret_cast<const char*>(first), first_size);
    back.back().append(reinterpret_cast<const char*>(second), second_size);
  });
  EXPECT_EQ(back, (std::vector<std::string>{std::string(200, 'm'), std::string(200, 'n')}));
}

TEST_F(DatagramRing, AHeaderThatCannotBeIsBroken) {
  receiver_.unwatch();
  ASSERT_TRUE(send("datagram"));
  const std::uint64_t length = 5000;
  std::memcpy(bytes_, &length, sizeof length);
  EXPECT_EQ(next(), Next::broken);
}

TEST_F(DatagramRing, ATailThatCannotBeIsBroken) {
  receiver_.unwatch();
  for (const std::uint64_t tail : {kSize + 16, std::uint64_t{8}, std::uint64_t{1} << 40}) {
    control_.tail = tail;
    EXPECT_EQ(next(), Next::broken) << tail;
  }
}

TEST_F(DatagramRing, AHeadThatCannotBeHarmsNobody) {
  receiver_.unwatch();
  const std::string text(500, 'x');
  while (send(text)) continue;
  control_.head = ~std::uint64_t{0} - 5;
  EXPECT_FALSE(send(text));
  sender_.take_back([](const std::byte*, std::size_t, const std::byte*, std::size_t) { FAIL(); });
}

// One thread sends and one receives, which falls asleep now and then; the kernel is a queue. Every
// datagram arrives, once and in order.
TEST_F(DatagramRing, LosesNothingBetweenTwoThreads) {
  constexpr std::uint32_t kDatagrams = 200'000;
  std::mutex mutex;
  std::deque<std::uint32_t> queue;
  receiver_.unwatch();
  std::thread sending([&] {
    std::mt19937 random(1);
    for (std::uint32_t i = 0; i < kDatagrams; ++i) {
      const std::string padding(random() % 60, 'x');
      iovec parts[2] = {{&i, sizeof i}, {const_cast<char*>(padding.data()), padding.size()}};
      if (sender_.send(parts, 2, sizeof i + padding.size())) continue;
      {
        const std::lock_guard guard(mutex);
        queue.push_back(i);
      }
      sender_.sent_by_kernel();
    }
  });
  std::mt19937 random(2);
  std::uint32_t expected = 0;
  while (expected < kDatagrams) {
    if (random() % 50 == 0) receiver_.watch();
    const Next found = this->next();
    ASSERT_NE(found, Next::broken);
    std::uint32_t got = 0;
    if (found == Next::ready) {
      const iovec part{.iov_base = &got, .iov_len = sizeof got};
      receiver_.take(&part, 1, false);
    } else if (found == Next::kernel_first || receiver_.watched()) {
      const std::lock_guard guard(mutex);
      // Only with the ring empty, or blocked by order, is the kernel's turn.
      if (queue.empty()) {
        receiver_.unwatch();
        continue;
      }
      if (found == Next::none && receiver_.looks_ready()) continue;
      got = queue.front();
      queue.pop_front();
      receiver_.came_by_kernel();
    } else {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(got, expected);
    ++expected;
  }
  sending.join();
}

}  // namespace
}  // namespace farcall::preload
