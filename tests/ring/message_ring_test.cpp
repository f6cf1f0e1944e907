// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

#include "farcall/error.hpp"
#include "ring/pair.hpp"

namespace farcall {
namespace {

using test::bytes_of;
using test::message;
using test::MessagePair;
using test::Pattern;

TEST(MessageRing, KeepsMessagesApartAtEverySize) {
  MessagePair ring(8192);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  for (std::size_t length = 0; length <= ring.writer.longest_piece(); ++length) {
    const auto first = message(length, length);
    const auto second = message(length / 3, ~length);
    ASSERT_EQ(ring.writer.write(first, Deadline::now()), Outcome::ok) << length;
    ASSERT_EQ(ring.writer.write(second, Deadline::now()), Outcome::ok) << length;
    for (const auto& expected : {first, second}) {
      ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok) << length;
      ASSERT_EQ(size, expected.size());
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(), into.begin())) << length;
    }
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block) << length;
  }
}

// What was payload in the last lap stands where headers are looked for in this one.
TEST(MessageRing, NeverTakesOldPayloadForAMessage) {
  MessagePair ring(4096);
  const std::uint64_t forged = message_ring::kReady | 5;
  std::vector<std::uint64_t> lie(100, forged);
  std::vector<std::byte> into(1024);
  std::size_t size = 0;
  for (std::size_t round = 0; round < 5000; ++round) {
    const auto bytes = std::as_bytes(std::span(lie)).first((round * 37) % 800);
    ASSERT_EQ(ring.writer.write(bytes, Deadline::now()), Outcome::ok);
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
    ASSERT_EQ(size, bytes.size());
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block) << round;
  }
}

// As above, with bytes that the writer had in hand but did not commit.
TEST(MessageRing, NeverTakesUncommittedBytesForAMessage) {
  MessagePair ring(4096);
  std::vector<std::byte> into(1024);
  std::size_t size = 0;
  for (std::size_t round = 0; round < 3000; ++round) {
    std::span<std::byte> space;
    ASSERT_EQ(ring.writer.reserve(900, space, Deadline::now()), Outcome::ok);
    const std::uint64_t forged = message_ring::kReady | 5;
    for (std::size_t i = 0; i + 8 <= space.size(); i += 8)
      std::memcpy(space.data() + i, &forged, sizeof forged);
    ring.writer.commit((round * 13) % 300);
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
    ASSERT_EQ(size, (round * 13) % 300);
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block) << round;
  }
}

// Nor those of a message that was given up.
TEST(MessageRing, NeverTakesBytesForAMessageThatWereGivenUp) {
  MessagePair ring(4096);
  const std::vector<std::byte> sent = test::message(10, 1);
  std::vector<std::byte> into(1024);
  std::size_t size = 0;
  for (std::size_t round = 0; round < 100; ++round) {
    ASSERT_EQ(ring.writer.write(sent, Deadline::now()), Outcome::ok);
    std::span<std::byte> space;
    ASSERT_EQ(ring.writer.reserve(900, space, Deadline::now()), Outcome::ok);
    const std::uint64_t forged = message_ring::kReady | 5;
    for (std::size_t i = 0; i + 8 <= space.size(); i += 8)
      std::memcpy(space.data() + i, &forged, sizeof forged);
    ASSERT_EQ(ring.writer.write(sent, Deadline::now()), Outcome::ok);
    for (int i = 0; i < 2; ++i) {
      ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
      ASSERT_EQ(size, sent.size());
    }
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block) << round;
  }
}

TEST(MessageRing, FillsUpAndGoesOn) {
  MessagePair ring(4096);
  std::vector<std::byte> into(100);
  std::size_t size = 0;
  for (int lap = 0; lap < 20; ++lap) {
    std::size_t written = 0;
    while (ring.writer.write(message(48, written), Deadline::now()) == Outcome::ok) ++written;
    EXPECT_GE(written, 4096U / 64 - 12);  // the reader passes its position on in eighths
    for (std::size_t i = 0; i < written; ++i) {
      ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
      ASSERT_TRUE(Pattern(i).matches(std::span(into).first(size)));
    }
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block);
  }
}

TEST(MessageRing, KeepsAMessageThatDoesNotFitTheBuffer) {
  MessagePair ring(4096);
  std::vector<std::byte> small(10);
  std::vector<std::byte> large(1000);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(500, 1), Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.reader.read(small, size, Deadline::now()), Outcome::too_big);
  EXPECT_EQ(size, 500U);
  EXPECT_EQ(ring.reader.read(large, size, Deadline::now()), Outcome::ok);
  EXPECT_TRUE(Pattern(1).matches(std::span(large).first(size)));
}

TEST(MessageRing, ALongMessageIsNotReadOnIntoASmallerBuffer) {
  MessagePair ring(4096);
  const auto sent = message(100'000, 9);
  std::vector<std::byte> into(sent.size());
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(sent, Deadline::now()), Outcome::would_block);
  ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block);
  ASSERT_EQ(ring.writer.write(sent, Deadline::now()), Outcome::would_block);
  const auto smaller = std::span(into).first(sent.size() - 1);
  EXPECT_THROW(ring.reader.read(smaller, size, Deadline::now()), MisuseError);
}

TEST(MessageRing, TellsTheSizeOfALongMessageBeforeItIsRead) {
  MessagePair ring(1 << 16);
  const auto sent = message(20'000, 4);
  std::vector<std::byte> small(100);
  std::vector<std::byte> large(20'000);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(sent, Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.reader.read(small, size, Deadline::now()), Outcome::too_big);
  EXPECT_EQ(size, 20'000U);
  EXPECT_EQ(ring.reader.read(large, size, Deadline::now()), Outcome::ok);
  EXPECT_EQ(sent, large);
}

TEST(MessageRing, EndComesAfterAllMessages) {
  MessagePair ring(4096);
  std::vector<std::byte> into(10);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write({}, Deadline::now()), Outcome::ok);
  ring.writer.finish();
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never()), Outcome::ok);
  EXPECT_EQ(size, 0U);
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never()), Outcome::finished);
}

TEST(MessageRing, AWriterThatStopsInsideALongMessageHasNotFinished) {
  MessagePair ring(4096);
  std::vector<std::byte> into(100'000);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(100'000, 9), Deadline::now()), Outcome::would_block);
  ring.writer.finish();
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never()), Outcome::peer_gone);
}

TEST(MessageRing, DeathOfTheWriterIsNotItsEnd) {
  MessagePair ring(4096);
  std::vector<std::byte> into(10);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(bytes_of("last"), Deadline::now()), Outcome::ok);
  ring.lifeline.first.reset();
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never()), Outcome::ok);
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never()), Outcome::peer_gone);
}

TEST(MessageRing, WriterLearnsThatTheReaderHasGone) {
  MessagePair ring(4096);
  ring.reader.finish();
  EXPECT_EQ(ring.writer.write(bytes_of("hello"), Deadline::now()), Outcome::peer_gone);
}

// There is room for all of it, so nobody waits for the reader.
TEST(MessageRing, WriterOfALongMessageLearnsThatTheReaderHasGone) {
  MessagePair ring(8192);
  const auto whole = message(ring.writer.longest_piece() + 100, 5);
  ring.reader.finish();
  EXPECT_EQ(ring.writer.write(whole, Deadline::now()), Outcome::peer_gone);
  EXPECT_EQ(ring.writer.write(bytes_of("another"), Deadline::now()), Outcome::peer_gone);
}

TEST(MessageRing, RefusesForgedHeaders) {
  for (const std::uint64_t forged :
       {std::uint64_t{1}, message_ring::kReady | 0xffffffff, message_ring::kReady | 1017,
        message_ring::kReady << 8, message_ring::kReady | message_ring::kPiece,
        message_ring::kReady | message_ring::kPiece | 8, ~std::uint64_t{0}}) {
    MessagePair ring(4096);
    std::vector<std::byte> into(100'000);
    std::size_t size = 0;
    message_ring::header(ring.memory.view().data).store(forged);
    EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::broken) << std::hex << forged;
    message_ring::header(ring.memory.view().data).store(message_ring::kReady);
    EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::broken) << "is final";
  }
}

TEST(MessageRing, RefusesAReaderPositionBeyondTheRing) {
  MessagePair ring(4096);
  while (ring.writer.write(message(48, 0), Deadline::now()) == Outcome::ok) {
  }
  ring.memory.view().control->head.value = 1 << 20;
  EXPECT_EQ(ring.writer.write(message(48, 0), Deadline::now()), Outcome::broken);
}

TEST(MessageRing, PiecesLongerThanTheirMessageBreakIt) {
  MessagePair ring(4096);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(3000, 2), Deadline::now()), Outcome::ok);
  const std::uint64_t shorter = 600;  // the first piece says so, the second one is longer
  std::memcpy(ring.memory.view().data + message_ring::kHeader, &shorter, sizeof shorter);
  EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::broken);
}

// Else a writer that sends nothing else would keep its reader for ever, whatever the deadline.
TEST(MessageRing, APieceOfNothingBreaksItsMessage) {
  MessagePair ring(4096);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(3000, 2), Deadline::now()), Outcome::ok);
  const std::size_t second = message_ring::footprint(message_ring::longest_piece(4096) / 2);
  message_ring::header(ring.memory.view().data + second) =
      message_ring::kReady | message_ring::kPiece;
  message_ring::header(ring.memory.view().data + second + kLine) = 0;
  EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::broken);
}

TEST(MessageRing, AnotherMessageInTheMiddleOfOneBreaksIt) {
  MessagePair ring(4096);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(3000, 2), Deadline::now()), Outcome::ok);
  const std::size_t second = message_ring::footprint(message_ring::longest_piece(4096) / 2);
  message_ring::header(ring.memory.view().data + second) = message_ring::kReady | 20;
  message_ring::header(ring.memory.view().data + second + kLine) = 0;
  EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::broken);
}

TEST(MessageRing, ASignalThatWasCaughtSinceEndsAWaitThatHasNotBegun) {
  MessagePair ring(4096, WaitMode::block);
  std::span<const std::byte> piece;
  std::span<std::byte> space;
  const SignalCount before = SignalCount::now();
  note_signal();
  EXPECT_EQ(ring.reader.front(piece, Deadline::never(), before), Outcome::interrupted);
  // Of this there is room for a part.
  EXPECT_EQ(ring.writer.write(message(6000, 1), Deadline::never(), before), Outcome::interrupted);
  EXPECT_EQ(ring.reader.front(piece, Deadline::never(), before), Outcome::ok) << "it is there";
  EXPECT_TRUE(ring.reader.is_piece());
  MessagePair full(4096, WaitMode::block);
  while (full.writer.write(message(500, 1), Deadline::now()) == Outcome::ok) {
  }
  EXPECT_EQ(full.writer.write(message(500, 1), Deadline::never(), before), Outcome::interrupted);
  EXPECT_EQ(full.writer.reserve(500, space, Deadline::never(), before), Outcome::interrupted);
}

TEST(MessageRing, CanBePolledAtBothEnds) {
  MessagePair ring(4096);
  ASSERT_EQ(ring.reader.prepare_poll(), Outcome::would_block);
  ASSERT_EQ(ring.writer.write(bytes_of("x"), Deadline::now()), Outcome::ok);
  char bell = 0;
  EXPECT_EQ(::read(ring.reader.poll_descriptor(), &bell, 1), 1);
  ring.reader.finish_poll();
  EXPECT_EQ(ring.reader.prepare_poll(), Outcome::ok);
  while (ring.writer.write(message(48, 0), Deadline::now()) == Outcome::ok) {
  }
  EXPECT_EQ(ring.writer.prepare_poll(), Outcome::would_block);
  ring.writer.finish_poll();
}

// As if the reader slept on the processor that this test runs on.
void put_reader_to_sleep(MessagePair& ring) {
  test::stay_on_this_processor();
  RingControl& control = *ring.memory.view().control;
  control.reader.processor = control.writer.processor.load();
  control.reader.parked = WaitState::kOnFutex;
}

TEST(MessageRing, AReaderThatSleptOnThisProcessorIsWokenByTheLastPiece) {
  MessagePair ring(1 << 16);
  put_reader_to_sleep(ring);
  const std::vector<std::byte> message(40'000);
  ASSERT_EQ(ring.writer.write(message, Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.memory.view().control->reader.parked, WaitState::kAwake);
}

TEST(MessageRing, AReaderThatSleptOnThisProcessorIsWokenByAFullRing) {
  MessagePair ring(1 << 16);
  put_reader_to_sleep(ring);
  const std::vector<std::byte> message(1 << 17);
  ASSERT_EQ(ring.writer.write(message, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(ring.memory.view().control->reader.parked, WaitState::kAwake);
}

// The writer looks at its own position, and room for just that is enough.
TEST(MessageRing, APollEndsAsSoonAsThereIsRoomForTheLongest) {
  MessagePair ring(4096);
  // What it takes beyond the message: the header behind it and one that is cleared ahead.
  const std::size_t needed = message_ring::footprint(ring.writer.longest_piece()) + 3 * kLine;
  const std::size_t most = (4096 - needed) / kLine;
  for (std::size_t i = 0; i < most; ++i)
    ASSERT_EQ(ring.writer.write(message(48, i), Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.writer.prepare_poll(), Outcome::ok);
  ASSERT_EQ(ring.writer.write(message(48, most), Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.writer.prepare_poll(), Outcome::would_block);
  ring.writer.finish_poll();
}

// Else a writer without room and a reader that polls would wait for each other.
TEST(MessageRing, AReaderThatPollsSaysWhatItHasRead) {
  MessagePair ring(4096);
  std::array<std::byte, 100> into;
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(48, 1), Deadline::now()), Outcome::ok);
  ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
  const auto& head = ring.memory.view().control->head.value;
  EXPECT_EQ(head, 0U) << "too little to be told of";
  EXPECT_EQ(ring.reader.prepare_poll(), Outcome::would_block);
  EXPECT_EQ(head, kLine);
  ring.reader.finish_poll();
}

TEST(MessageRing, AWriterThatSleptOnThisProcessorIsWokenBeforeTheReaderPolls) {
  MessagePair ring(4096);
  test::stay_on_this_processor();
  std::array<std::byte, 100> into;
  std::size_t size = 0;
  // Whoever waits says where it runs.
  ASSERT_EQ(ring.reader.read(into, size, Deadline::after(std::chrono::milliseconds(1))),
            Outcome::timed_out);
  RingControl& control = *ring.memory.view().control;
  while (ring.writer.write(message(48, 0), Deadline::now()) == Outcome::ok) {
  }
  control.writer.processor = control.reader.processor.load();
  control.writer.parked = WaitState::kOnFutex;
  for (int i = 0; i < 10; ++i)
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
  ASSERT_NE(control.head.value, 0U);
  ASSERT_EQ(control.writer.parked, WaitState::kOnFutex);
  EXPECT_EQ(ring.reader.prepare_poll(), Outcome::ok) << "there is more to read";
  EXPECT_EQ(control.writer.parked, WaitState::kAwake);
}

// A long message is one, in however many pieces it travels.
TEST(MessageRing, ALongMessageIsCountedOnce) {
  MessagePair ring(4096);
  observe::Half sent{};
  observe::Half received{};
  ring.writer.observe(&sent);
  ring.reader.observe(&received);
  const auto whole = message(10'000, 1);
  std::vector<std::byte> into(10'000);
  std::size_t size = 0;
  Outcome written = Outcome::would_block;
  Outcome read = Outcome::would_block;
  while (written == Outcome::would_block || read == Outcome::would_block) {
    if (written == Outcome::would_block) written = ring.writer.write(whole, Deadline::now());
    read = ring.reader.read(into, size, Deadline::now());
  }
  ASSERT_EQ(written, Outcome::ok);
  ASSERT_EQ(read, Outcome::ok);
  for (const observe::Half* half : {&sent, &received}) {
    EXPECT_EQ(observe::detail::get(half->messages), 1U);
    EXPECT_EQ(observe::detail::get(half->bytes), 10'000U);
  }
}

TEST(MessageRing, ASignalThatWasCaughtSinceEndsReadingInTheMiddle) {
  MessagePair ring(8192, WaitMode::block);
  std::vector<std::byte> into(20'000);
  const auto whole = message(into.size(), 4);
  std::size_t size = 0;
  const SignalCount before = SignalCount::now();
  note_signal();
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never(), before), Outcome::interrupted);
  EXPECT_EQ(ring.writer.write(whole, Deadline::never(), before), Outcome::interrupted);
  // What has been written of it is read without a wait, and the rest is waited for.
  EXPECT_EQ(ring.reader.read(into, size, Deadline::never(), before), Outcome::interrupted);
  Outcome written = Outcome::would_block;
  Outcome read = Outcome::interrupted;
  while (written == Outcome::would_block || read == Outcome::interrupted) {
    if (written == Outcome::would_block) written = ring.writer.write(whole, Deadline::now());
    read = ring.reader.read(into, size, Deadline::never(), before);
  }
  EXPECT_EQ(written, Outcome::ok);
  EXPECT_EQ(read, Outcome::ok);
  EXPECT_EQ(into, whole);
}

template <class Half>
void expect_wake_by_finish(Half& half, WaitState& peer) {
  peer.parked = WaitState::kOnFutex;
  half.finish();
  EXPECT_EQ(peer.parked, WaitState::kAwake);
}

TEST(RingHalves, WhoeverFinishesWakesTheOther) {
  MessagePair messages(4096);
  expect_wake_by_finish(messages.writer, messages.memory.view().control->reader);
  expect_wake_by_finish(messages.reader, messages.memory.view().control->writer);
  test::BytePair bytes(4096);
  expect_wake_by_finish(bytes.writer, bytes.memory.view().control->reader);
  expect_wake_by_finish(bytes.reader, bytes.memory.view().control->writer);
}

}  // namespace
}  // namespace farcall
