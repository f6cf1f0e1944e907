// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "farcall/error.hpp"
#include "ring/pair.hpp"

namespace farcall {
namespace {

using test::bytes_of;
using test::message;
using test::MessagePair;

TEST(MessageRing, LongMessagesGoOnWhereTheyStopped) {
  MessagePair ring(4096);
  const auto sent = message(100'000, 9);
  std::vector<std::byte> got(sent.size());
  std::size_t size = 0;
  Outcome written = Outcome::would_block;
  Outcome read = Outcome::would_block;
  for (int i = 0; i < 1000 && read != Outcome::ok; ++i) {
    if (written != Outcome::ok) written = ring.writer.write(sent, Deadline::now());
    read = ring.reader.read(got, size, Deadline::now());
  }
  EXPECT_EQ(written, Outcome::ok);
  EXPECT_EQ(read, Outcome::ok);
  EXPECT_EQ(size, sent.size());
  EXPECT_EQ(sent, got);
  // And ordinary messages follow.
  EXPECT_EQ(ring.writer.write(bytes_of("next"), Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.reader.read(got, size, Deadline::now()), Outcome::ok);
  EXPECT_EQ(size, 4U);
}

TEST(MessageRing, LongMessagesAreNotMixedWithOthers) {
  MessagePair ring(4096);
  ASSERT_EQ(ring.writer.write(message(100'000, 9), Deadline::now()), Outcome::would_block);
  EXPECT_THROW(ring.writer.write(bytes_of("other"), Deadline::now()), MisuseError);
  EXPECT_THROW(ring.writer.write(message(99'999, 9), Deadline::now()), MisuseError);
}

TEST(MessageRing, ALongMessageOfWhichNothingHasGoneIsForgotten) {
  MessagePair ring(4096);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  std::size_t short_ones = 0;
  while (ring.writer.write(bytes_of("short"), Deadline::now()) == Outcome::ok) ++short_ones;
  ASSERT_EQ(ring.writer.write(message(2000, 9), Deadline::now()), Outcome::would_block);
  ASSERT_EQ(ring.writer.write(bytes_of("short"), Deadline::now()), Outcome::would_block);
  for (; short_ones != 0; --short_ones)
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
  ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block);
  EXPECT_EQ(ring.writer.write(bytes_of("next"), Deadline::now()), Outcome::ok);
  EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok);
  EXPECT_EQ(size, 4U);
}

// Wherever they differ, whether in other memory or in the same.
TEST(MessageRing, LongMessagesAreNotMixedWithOthersOfTheirSize) {
  const auto first = message(8000, 9);
  for (std::size_t at = 0; at < 500; ++at) {
    MessagePair ring(4096);
    std::vector<std::byte> bytes = first;
    std::vector<std::byte> into(first.size());
    std::size_t size = 0;
    ASSERT_EQ(ring.writer.write(bytes, Deadline::now()), Outcome::would_block);
    bytes[at] ^= std::byte{128};
    EXPECT_THROW(ring.writer.write(bytes, Deadline::now()), MisuseError) << at;
    const auto elsewhere = bytes;
    EXPECT_THROW(ring.writer.write(elsewhere, Deadline::now()), MisuseError) << at;
    Outcome written = Outcome::would_block;
    while (written == Outcome::would_block) {
      ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block) << at;
      written = ring.writer.write(first, Deadline::now());
    }
    ASSERT_EQ(written, Outcome::ok) << at;
    ASSERT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::ok) << at;
    ASSERT_EQ(first, into) << at;
  }
}

// What has gone is not compared each time, but before the last piece.
TEST(MessageRing, ALongMessageThatChangesOnItsWayNeverArrives) {
  const auto first = message(40'000, 9);
  int late = 0;
  for (int calls = 1; calls < 25; ++calls) {
    MessagePair ring(4096);
    std::vector<std::byte> bytes = first;
    std::vector<std::byte> into(first.size());
    std::size_t size = 0;
    int call = 0;
    int gone = 0;  // when it had changed
    const auto go_on = [&] {
      const Outcome written = ring.writer.write(bytes, Deadline::now());
      if (written == Outcome::would_block) {
        EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block);
      }
      return written;
    };
    for (; call < calls && go_on() == Outcome::would_block; ++call) continue;
    if (call < calls) break;  // it has arrived
    for (std::byte& byte : bytes) byte = ~byte;
    const auto changed = bytes;
    Outcome written = Outcome::would_block;
    EXPECT_THROW(
        while (written == Outcome::would_block) {
          written = go_on();
          gone += written == Outcome::would_block ? 1 : 0;
        },
        MisuseError)
        << calls;
    EXPECT_THROW(ring.writer.write(changed, Deadline::now()), MisuseError) << calls;
    EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block) << calls;
    if (gone == 0) continue;
    ++late;
    // A part of the other one has gone: neither can go on.
    bytes = first;
    EXPECT_THROW(
        for (written = Outcome::would_block; written == Outcome::would_block;) written = go_on(),
        MisuseError)
        << calls;
  }
  EXPECT_NE(late, 0);
}

// Nor after calls of which nothing came.
TEST(MessageRing, ALongMessageThatChangesWhileNobodyReadsNeverArrives) {
  for (std::size_t bytes = 2100; bytes < 12'000; bytes += 100) {
    MessagePair ring(4096);
    auto one = message(bytes, 9);
    std::vector<std::byte> into(bytes);
    std::size_t size = 0;
    if (ring.writer.write(one, Deadline::now()) == Outcome::ok) continue;  // there is room for all
    for (int i = 0; i < 2; ++i)
      ASSERT_EQ(ring.writer.write(one, Deadline::now()), Outcome::would_block);
    for (std::byte& byte : one) byte = ~byte;
    EXPECT_THROW(
        for (int i = 0; i < 100; ++i) {
          EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::would_block);
          if (ring.writer.write(one, Deadline::now()) == Outcome::ok) break;
        },
        MisuseError)
        << bytes;
  }
}

TEST(MessageRing, ALongMessageIsForgottenWhenItsReaderHasDied) {
  MessagePair ring(4096);
  ASSERT_EQ(ring.writer.write(message(8000, 9), Deadline::now()), Outcome::would_block);
  ring.lifeline.second.reset();
  EXPECT_EQ(ring.writer.write(message(8000, 9), Deadline::never()), Outcome::peer_gone);
  EXPECT_EQ(ring.writer.write(message(900, 9), Deadline::never()), Outcome::peer_gone);
}

// A message that has room in one piece is none of several.
TEST(MessageRing, ALongMessageOfOnePieceIsRefused) {
  MessagePair ring(4096);
  std::vector<std::byte> into(4096);
  std::size_t size = 0;
  ASSERT_EQ(ring.writer.write(message(3000, 2), Deadline::now()), Outcome::ok);
  const std::uint64_t first = message_ring::longest_piece(4096) / 2 - sizeof(std::uint64_t);
  std::memcpy(ring.memory.view().data + message_ring::kHeader, &first, sizeof first);
  EXPECT_EQ(ring.reader.read(into, size, Deadline::now()), Outcome::broken);
}

}  // namespace
}  // namespace farcall
