// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "farcall/error.hpp"
#include "ring/pair.hpp"

namespace farcall {
namespace {

using test::BytePair;
using test::Pattern;

TEST(ByteRing, PassesBytesInOrderAcrossItsEnd) {
  BytePair ring(4096);
  Pattern sent(1);
  Pattern expected(1);
  std::vector<std::byte> block(1500);
  for (int round = 0; round < 100; ++round) {
    sent.fill(block);
    std::size_t count = 0;
    ASSERT_EQ(ring.writer.write(block, count, Deadline::now()), Outcome::ok);
    ASSERT_EQ(count, block.size());
    std::vector<std::byte> got(block.size());
    for (std::size_t done = 0; done < got.size(); done += count)
      ASSERT_EQ(ring.reader.read_some(std::span(got).subspan(done), count, Deadline::now()),
                Outcome::ok);
    ASSERT_TRUE(expected.matches(got));
  }
}

TEST(ByteRing, WritesAsMuchAsFits) {
  BytePair ring(4096);
  const std::vector<std::byte> block(5000);
  std::size_t count = 0;
  EXPECT_EQ(ring.writer.write_some(block, count, Deadline::now()), Outcome::ok);
  EXPECT_EQ(count, 4096U);
  EXPECT_EQ(ring.writer.write_some(block, count, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(count, 0U);
  EXPECT_EQ(ring.writer.write_some(block, count, Deadline::after(std::chrono::milliseconds(5))),
            Outcome::timed_out);
}

TEST(ByteRing, ReadsWhatIsThere) {
  BytePair ring(4096);
  std::vector<std::byte> into(100);
  std::size_t count = 7;
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(count, 0U);
  ASSERT_EQ(ring.writer.write(test::bytes_of("hello"), count, Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::ok);
  EXPECT_EQ(count, 5U);
}

TEST(ByteRing, EmptySpansAreNothingToDo) {
  BytePair ring(4096);
  std::size_t count = 0;
  EXPECT_EQ(ring.writer.write_some({}, count, Deadline::never()), Outcome::ok);
  EXPECT_EQ(ring.reader.read_some({}, count, Deadline::never()), Outcome::ok);
}

TEST(ByteRing, SpansNeverWrap) {
  BytePair ring(4096);
  std::span<std::byte> space;
  std::span<const std::byte> bytes;
  // Move both positions near the end.
  ASSERT_EQ(ring.writer.reserve(1, space, Deadline::now()), Outcome::ok);
  ring.writer.commit(4000);
  ASSERT_EQ(ring.reader.front(1, bytes, Deadline::now()), Outcome::ok);
  ring.reader.consume(4000);
  ASSERT_EQ(ring.writer.reserve(2000, space, Deadline::now()), Outcome::ok);
  ASSERT_GE(space.size(), 2000U);
  Pattern(3).fill(space.first(2000));
  ring.writer.commit(2000);
  ASSERT_EQ(ring.reader.front(2000, bytes, Deadline::now()), Outcome::ok);
  ASSERT_EQ(bytes.size(), 2000U);
  EXPECT_TRUE(Pattern(3).matches(bytes));
}

TEST(ByteRing, RefusesToWaitForWhatMayNeverFit) {
  BytePair ring(4096);
  std::span<std::byte> space;
  std::span<const std::byte> bytes;
  std::size_t count = 0;
  EXPECT_THROW(ring.reader.front(2049, bytes, Deadline::now()), MisuseError);
  ASSERT_EQ(ring.writer.write(std::vector<std::byte>(3000), count, Deadline::now()), Outcome::ok);
  EXPECT_THROW(ring.writer.reserve(2049, space, Deadline::now()), MisuseError);
}

TEST(ByteRing, HalfOfTheRingMayBeWaitedFor) {
  BytePair ring(4096);
  std::span<std::byte> space;
  std::span<const std::byte> bytes;
  EXPECT_EQ(ring.reader.front(2048, bytes, Deadline::now()), Outcome::would_block);
  ASSERT_EQ(ring.writer.reserve(2048, space, Deadline::now()), Outcome::ok);
  ring.writer.commit(2047);
  EXPECT_EQ(ring.reader.front(2048, bytes, Deadline::now()), Outcome::would_block);
  ring.writer.commit(2);
  EXPECT_EQ(ring.reader.front(2048, bytes, Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.writer.reserve(2048, space, Deadline::now()), Outcome::would_block);
}

TEST(ByteRing, EndComesAfterAllBytes) {
  BytePair ring(4096);
  std::size_t count = 0;
  std::vector<std::byte> into(3);
  ASSERT_EQ(ring.writer.write(test::bytes_of("hello"), count, Deadline::now()), Outcome::ok);
  ring.writer.finish();
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::never()), Outcome::ok);
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::never()), Outcome::ok);
  EXPECT_EQ(count, 2U);
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::never()), Outcome::finished);
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::finished);
}

TEST(ByteRing, DeathOfTheWriterIsNotItsEnd) {
  BytePair ring(4096);
  std::size_t count = 0;
  std::vector<std::byte> into(10);
  ASSERT_EQ(ring.writer.write(test::bytes_of("hello"), count, Deadline::now()), Outcome::ok);
  ring.lifeline.first.reset();
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::never()), Outcome::ok);
  EXPECT_EQ(ring.reader.read_some(into, count, Deadline::never()), Outcome::peer_gone);
}

TEST(ByteRing, WriterLearnsThatTheReaderHasGone) {
  BytePair ring(4096);
  std::size_t count = 0;
  ring.reader.finish();
  EXPECT_EQ(ring.writer.write(test::bytes_of("hello"), count, Deadline::now()), Outcome::peer_gone);
}

TEST(ByteRing, RefusesAPositionBeyondTheRing) {
  std::size_t count = 0;
  std::vector<std::byte> into(5000);
  {
    BytePair ring(4096);
    ring.memory.view().control->tail.value = 4097;
    EXPECT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::broken);
    ring.memory.view().control->tail.value = 1;
    EXPECT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::broken) << "is final";
    ring.memory.view().control->tail.value = 0;
    EXPECT_EQ(ring.reader.read_some(into, count, Deadline::never()), Outcome::broken)
        << "nothing is waited for";
  }
  {
    BytePair ring(4096);
    ASSERT_EQ(ring.writer.write_some(into, count, Deadline::now()), Outcome::ok);
    ring.memory.view().control->head.value = 5000;
    EXPECT_EQ(ring.writer.write_some(into, count, Deadline::now()), Outcome::broken);
  }
}

TEST(ByteRing, CanBePolledAtBothEnds) {
  BytePair ring(4096);
  std::size_t count = 0;
  ASSERT_EQ(ring.reader.prepare_poll(), Outcome::would_block);
  ASSERT_EQ(ring.writer.write(test::bytes_of("x"), count, Deadline::now()), Outcome::ok);
  char bell = 0;
  EXPECT_EQ(::read(ring.reader.poll_descriptor(), &bell, 1), 1);
  ring.reader.finish_poll();
  EXPECT_EQ(ring.reader.prepare_poll(), Outcome::ok);
  EXPECT_EQ(ring.writer.prepare_poll(), Outcome::ok);
  ASSERT_EQ(ring.writer.write_some(std::vector<std::byte>(4096), count, Deadline::now()),
            Outcome::ok);
  EXPECT_EQ(ring.writer.prepare_poll(), Outcome::would_block);
  ring.writer.finish_poll();
}

// Whoever polls is told of it by the operation that follows, and so must not be left to sleep.
TEST(ByteRing, APollDoesNotWaitForAPeerThatBreaksTheRing) {
  std::size_t count = 0;
  std::vector<std::byte> into(5000);
  {
    BytePair ring(4096);
    RingControl& control = *ring.memory.view().control;
    ASSERT_EQ(ring.writer.write_some(into, count, Deadline::now()), Outcome::ok);
    control.head.value = 1 << 20;
    EXPECT_EQ(ring.writer.prepare_poll(), Outcome::ok);
    EXPECT_EQ(ring.writer.write_some(into, count, Deadline::now()), Outcome::broken);
    control.head.value = 0;
    EXPECT_EQ(ring.writer.prepare_poll(), Outcome::ok);
  }
  {
    BytePair ring(4096);
    RingControl& control = *ring.memory.view().control;
    control.tail.value = 1 << 20;
    EXPECT_EQ(ring.reader.prepare_poll(), Outcome::ok);
    EXPECT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::broken);
    control.tail.value = 0;
    EXPECT_EQ(ring.reader.prepare_poll(), Outcome::ok);
  }
}

TEST(ByteRing, ASignalThatWasCaughtSinceEndsAWaitThatHasNotBegun) {
  BytePair ring(4096, WaitMode::block);
  std::size_t count = 0;
  std::vector<std::byte> bytes(5000);
  const SignalCount before = SignalCount::now();
  note_signal();
  EXPECT_EQ(ring.reader.read_some(bytes, count, Deadline::never(), before), Outcome::interrupted);
  EXPECT_EQ(ring.writer.write(bytes, count, Deadline::never(), before), Outcome::interrupted);
  EXPECT_EQ(count, 4096U) << "and what there was room for has been written";
  // What is there needs no wait.
  EXPECT_EQ(ring.reader.read_some(bytes, count, Deadline::never(), before), Outcome::ok);
  EXPECT_EQ(count, 4096U);
}

// As if the writer slept, on the processor that this test runs on, in this way.
void put_to_sleep(BytePair& ring, std::uint32_t how) {
  test::stay_on_this_processor();
  std::byte one{};
  std::size_t count = 0;
  // Whoever waits says where it runs.
  ASSERT_EQ(ring.reader.read_some({&one, 1}, count, Deadline::after(std::chrono::milliseconds(1))),
            Outcome::timed_out);
  RingControl& control = *ring.memory.view().control;
  control.writer.processor = control.reader.processor.load();
  const std::vector<std::byte> bytes(4096);
  ASSERT_EQ(ring.writer.write(bytes, count, Deadline::now()), Outcome::ok);
  control.writer.parked = how;
}

void read(BytePair& ring, std::size_t size) {
  std::vector<std::byte> into(size);
  std::size_t count = 0;
  ASSERT_EQ(ring.reader.read_some(into, count, Deadline::now()), Outcome::ok);
  ASSERT_EQ(count, size);
}

TEST(ByteRing, AWriterThatSleptOnThisProcessorIsWokenForHalfOfTheRing) {
  BytePair ring(4096);
  put_to_sleep(ring, WaitState::kOnFutex);
  std::atomic<std::uint32_t>& parked = ring.memory.view().control->writer.parked;
  read(ring, 1500);
  EXPECT_EQ(parked, WaitState::kOnFutex);
  read(ring, 600);
  EXPECT_EQ(parked, WaitState::kAwake);
}

TEST(ByteRing, AWriterThatSleptOnThisProcessorIsWokenBeforeTheReaderWaits) {
  for (const bool poll : {false, true}) {
    BytePair ring(4096);
    put_to_sleep(ring, WaitState::kOnFutex);
    std::atomic<std::uint32_t>& parked = ring.memory.view().control->writer.parked;
    read(ring, 1500);
    ASSERT_EQ(parked, WaitState::kOnFutex);
    if (poll) {
      EXPECT_EQ(ring.reader.prepare_poll(), Outcome::ok) << "there is more to read";
    } else {
      // The rest and one more byte, of which half a ring is the most that can be asked for.
      read(ring, 600);
      RingControl& control = *ring.memory.view().control;
      control.writer.processor = control.reader.processor.load();
      parked = WaitState::kOnFutex;
      read(ring, 1000);
      ASSERT_EQ(parked, WaitState::kOnFutex);
      std::span<const std::byte> bytes;
      EXPECT_EQ(ring.reader.front(2000, bytes, Deadline::now()), Outcome::would_block);
    }
    EXPECT_EQ(parked, WaitState::kAwake);
  }
}

// The reader may turn to something else for ever, and these do not look by themselves.
TEST(ByteRing, AWriterThatPollsOrHasSleptLongIsWokenAtOnce) {
  for (const std::uint32_t how : {WaitState::kOnDescriptor, WaitState::kOnBell}) {
    BytePair ring(4096);
    put_to_sleep(ring, how);
    read(ring, 600);
    EXPECT_EQ(ring.memory.view().control->writer.parked, WaitState::kAwake);
  }
}

}  // namespace
}  // namespace farcall
