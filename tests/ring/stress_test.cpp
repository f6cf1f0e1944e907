// SPDX-License-Identifier: Apache-2.0
//
// Both halves as threads over one mapping, with random delays: ThreadSanitizer sees every access.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <random>
#include <thread>
#include <vector>

#include "ring/pair.hpp"

namespace farcall {
namespace {

using test::BytePair;
using test::MessagePair;
using test::Pattern;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kMessages = 100'000;
#else
constexpr int kMessages = 500'000;
#endif

// Now and then: gives way, sleeps a little, or sleeps long enough to end every spinning phase.
class Dawdler {
 public:
  explicit Dawdler(unsigned seed) : random_(seed) {}
  void maybe() {
    switch (random_() % 4096) {
      case 0: std::this_thread::sleep_for(std::chrono::microseconds(random_() % 500)); break;
      case 1:
      case 2: std::this_thread::yield(); break;
      case 3:
        if (random_() % 16 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(25));
        break;
      default: break;
    }
  }
  std::size_t below(std::size_t limit) { return random_() % limit; }

 private:
  std::minstd_rand random_;
};

class RingStress : public testing::TestWithParam<WaitMode> {};
INSTANTIATE_TEST_SUITE_P(EveryMode, RingStress,
                         testing::Values(WaitMode::spin, WaitMode::adaptive, WaitMode::block),
                         [](const auto& mode) { return std::string(to_string(mode.param)); });

TEST_P(RingStress, MessagesArriveWholeAndInOrder) {
  MessagePair ring(8192, GetParam());
  std::thread writer([&] {
    Dawdler dawdler(1);
    Pattern pattern(5);
    std::vector<std::byte> message(9000);
    for (int i = 0; i < kMessages; ++i) {
      const auto bytes = std::span(message).first(dawdler.below(i % 64 == 0 ? 9000 : 200));
      pattern.fill(bytes);
      ASSERT_EQ(ring.writer.write(bytes, Deadline::never()), Outcome::ok);
      dawdler.maybe();
    }
    ring.writer.finish();
  });
  Dawdler sizes(1);
  Dawdler dawdler(2);
  Pattern pattern(5);
  std::vector<std::byte> into(9000);
  std::size_t size = 0;
  int got = 0;
  Outcome outcome = Outcome::ok;
  while ((outcome = ring.reader.read(into, size, Deadline::never())) == Outcome::ok) {
    ASSERT_TRUE(pattern.matches(std::span(into).first(size))) << got;
    ++got;
    dawdler.maybe();
  }
  writer.join();
  EXPECT_EQ(outcome, Outcome::finished);
  EXPECT_EQ(got, kMessages);
}

TEST_P(RingStress, BytesArriveInOrder) {
  BytePair ring(4096, GetParam());
  constexpr std::size_t kTotal = kMessages * 60UL;
  std::thread writer([&] {
    Dawdler dawdler(3);
    Pattern pattern(6);
    std::vector<std::byte> block(6000);
    for (std::size_t left = kTotal; left > 0;) {
      const auto bytes = std::span(block).first(std::min(left, 1 + dawdler.below(300)));
      pattern.fill(bytes);
      std::size_t count = 0;
      ASSERT_EQ(ring.writer.write(bytes, count, Deadline::never()), Outcome::ok);
      left -= count;
      dawdler.maybe();
    }
    ring.writer.finish();
  });
  Dawdler dawdler(4);
  Pattern pattern(6);
  std::vector<std::byte> into(6000);
  std::size_t got = 0;
  for (;;) {
    std::size_t count = 0;
    const Outcome outcome = ring.reader.read_some(std::span(into).first(1 + dawdler.below(400)),
                                                  count, Deadline::never());
    if (outcome == Outcome::finished) break;
    ASSERT_EQ(outcome, Outcome::ok);
    ASSERT_TRUE(pattern.matches(std::span(into).first(count)));
    got += count;
    dawdler.maybe();
  }
  writer.join();
  EXPECT_EQ(got, kTotal);
}

// A lost wake-up would stop this: each side sleeps while the other is quick.
TEST_P(RingStress, QuestionsAndAnswersNeverStop) {
  MessagePair there(4096, GetParam());
  MessagePair back(4096, GetParam());
  constexpr int kRounds = kMessages / 4;
  std::thread server([&] {
    Dawdler dawdler(7);
    std::vector<std::byte> message(128);
    std::size_t size = 0;
    while (there.reader.read(message, size, Deadline::never()) == Outcome::ok) {
      dawdler.maybe();
      ASSERT_EQ(back.writer.write(std::span(message).first(size), Deadline::never()), Outcome::ok);
    }
  });
  Dawdler dawdler(8);
  for (int i = 0; i < kRounds; ++i) {
    std::vector<std::byte> reply(128);
    std::size_t size = 0;
    ASSERT_EQ(there.writer.write(std::as_bytes(std::span(&i, 1)), Deadline::never()), Outcome::ok);
    ASSERT_EQ(back.reader.read(reply, size, Deadline::after(std::chrono::seconds(20))), Outcome::ok)
        << "round " << i;
    int answer = -1;
    std::memcpy(&answer, reply.data(), sizeof answer);
    ASSERT_EQ(answer, i);
    dawdler.maybe();
  }
  there.writer.finish();
  server.join();
}

// The reader polls, as an event loop would.
TEST(RingStress, PollingReadersMissNothing) {
  MessagePair ring(4096);
  constexpr int kCount = kMessages / 10;
  std::thread writer([&] {
    Dawdler dawdler(9);
    for (int i = 0; i < kCount; ++i) {
      ASSERT_EQ(ring.writer.write(std::as_bytes(std::span(&i, 1)), Deadline::never()), Outcome::ok);
      dawdler.maybe();
      if (dawdler.below(8) == 0) std::this_thread::yield();
    }
    ring.writer.finish();
  });
  int expected = 0;
  for (bool open = true; open;) {
    if (ring.reader.prepare_poll() == Outcome::would_block) {
      pollfd entry{.fd = ring.reader.poll_descriptor(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&entry, 1, 20'000), 1) << "lost a doorbell after " << expected;
      ring.reader.finish_poll();
    }
    for (;;) {
      std::array<std::byte, 64> into;
      std::size_t size = 0;
      const Outcome outcome = ring.reader.read(into, size, Deadline::now());
      if (outcome == Outcome::would_block) break;
      if (outcome == Outcome::finished) {
        open = false;
        break;
      }
      ASSERT_EQ(outcome, Outcome::ok);
      int value = -1;
      std::memcpy(&value, into.data(), sizeof value);
      ASSERT_EQ(value, expected++);
    }
  }
  writer.join();
  EXPECT_EQ(expected, kCount);
}

}  // namespace
}  // namespace farcall
