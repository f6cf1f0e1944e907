// SPDX-License-Identifier: Apache-2.0
#include "capture/streams.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

namespace farcall::capture {
namespace {

using observe::TapRecord;

constexpr std::int64_t kBefore = 500;  // when the capture began
constexpr std::uint16_t kClient = 40'000;
constexpr std::uint16_t kServer = 80;

observe::Address address(std::uint16_t port) {
  observe::Address made{};
  made.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  made.port = port;
  made.known = 1;
  return made;
}

std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t at) {
  std::uint32_t word = 0;
  for (std::size_t i = 0; i < 4; ++i)
    word = word << 8 | std::to_integer<std::uint32_t>(bytes[at + i]);
  return word;
}

// What one direction is when it is put together by its numbers.
class Streams_ : public ::testing::Test {
 protected:
  struct Direction {
    bool syn = false;
    bool fin = false;
    std::uint32_t first = 0;
    std::map<std::uint32_t, char> bytes;  // by their place
    unsigned twice = 0;
    std::uint32_t acknowledged = 0;
  };

  Streams_()
      : streams_(kBefore, [this](const Message&, Way, const IpHeader& header,
                                 std::span<const std::byte> payload,
                                 std::string_view) { take(header.bytes(), payload); }) {}

  void take(std::span<const std::byte> header, std::span<const std::byte> payload) {
    ++packets_;
    Direction& way = directions_[static_cast<std::uint16_t>(word_at(header, 20) >> 16)];
    const unsigned flags = word_at(header, 32) >> 16 & 0xff;
    const std::uint32_t sequence = word_at(header, 24);
    if ((flags & 0x02) != 0) {
      ++syns_;
      way.syn = true;
      way.first = sequence + 1;
    }
    way.fin = way.fin || (flags & 0x01) != 0;
    way.acknowledged = word_at(header, 28);
    if (!way.syn && way.bytes.empty() && !payload.empty()) way.first = sequence;
    for (std::size_t i = 0; i < payload.size(); ++i)
      if (!way.bytes
               .emplace(sequence - way.first + static_cast<std::uint32_t>(i),
                        std::to_integer<char>(payload[i]))
               .second)
        ++way.twice;
  }

  struct Said {
    std::uint16_t from;
    TapRecord::What what;
    std::uint64_t sent;
    std::uint64_t received;
    std::string text;
    std::size_t missing = 0;
    std::int64_t opened = 1000;
  };
  void add(const Said& said) {
    const bool client = said.from == kClient;
    streams_.add({.kind = observe::Kind::tcp,
                  .what = said.what,
                  .role = client ? observe::Role::client : observe::Role::server,
                  .user = 0,
                  .pid = client ? 1 : 2,
                  .peer = 0,
                  .time = ++time_,
                  .sent = said.sent,
                  .received = said.received,
                  .session = 0,
                  .opened = said.opened,
                  .local = address(client ? kClient : kServer),
                  .remote = address(client ? kServer : kClient),
                  .size = static_cast<std::uint32_t>(said.text.size() + said.missing),
                  .bytes = std::as_bytes(std::span(said.text)),
                  .name = {}});
  }
  std::string text(std::uint16_t from) {
    std::string all;
    for (const auto& [at, byte] : directions_[from].bytes) {
      if (at > all.size()) all += "[" + std::to_string(at - all.size()) + "]";
      all += byte;
    }
    return all;
  }

  std::map<std::uint16_t, Direction> directions_;
  Streams streams_;
  std::int64_t time_ = 2000;
  unsigned packets_ = 0;
  unsigned syns_ = 0;
};

constexpr auto kSent = TapRecord::kSent;
constexpr auto kReceived = TapRecord::kReceived;
constexpr auto kClosed = TapRecord::kClosed;

TEST_F(Streams_, AreWhatBothEndsSent) {
  add({kClient, kSent, 0, 0, "question"});
  add({kServer, kSent, 0, 8, "answer", 0, 1001});
  add({kClient, kSent, 8, 6, " again"});
  EXPECT_EQ(text(kClient), "question again");
  EXPECT_EQ(text(kServer), "answer");
  EXPECT_TRUE(directions_[kClient].syn);
  EXPECT_TRUE(directions_[kServer].syn);
  EXPECT_EQ(directions_[kClient].acknowledged, directions_[kServer].first + 6);
  EXPECT_EQ(streams_.missing(), 0U);
}

TEST_F(Streams_, HaveEachByteOnceWhoeverTellsOfIt) {
  add({kClient, kSent, 0, 0, "abc"});
  add({kServer, kReceived, 0, 0, "ab", 0, 1001});
  add({kServer, kReceived, 0, 2, "c", 0, 1001});
  // The receiver may have been faster.
  add({kServer, kReceived, 0, 3, "defg", 0, 1001});
  add({kClient, kSent, 3, 0, "defghi"});
  EXPECT_EQ(text(kClient), "abcdefghi");
  EXPECT_EQ(directions_[kClient].twice, 0U);
}

TEST_F(Streams_, LeaveAGapWhereNobodyToldOfBytesAndFillItLater) {
  add({kClient, kSent, 0, 0, "abc"});
  add({kClient, kSent, 6, 0, "ghi"});
  EXPECT_EQ(streams_.missing(), 3U);
  add({kServer, kReceived, 0, 4, "e", 0, 1001});
  EXPECT_EQ(streams_.missing(), 2U);
  add({kServer, kReceived, 0, 2, "cdefgh", 0, 1001});
  EXPECT_EQ(streams_.missing(), 0U);
  EXPECT_EQ(text(kClient), "abcdefghi");
  EXPECT_EQ(directions_[kClient].twice, 0U);
}

TEST_F(Streams_, CountWhatCouldNotBeCopied) {
  add({kClient, kSent, 0, 0, "abc", 5});
  add({kClient, kSent, 8, 0, "i"});
  EXPECT_EQ(text(kClient), "abc[5]i");
  EXPECT_EQ(streams_.missing(), 5U);
}

TEST_F(Streams_, BeginWhereTheCaptureDoesIfTheConnectionWasThereBefore) {
  add({kClient, kSent, 1'000'000, 5000, "abc", 0, 100});
  add({kServer, kSent, 5000, 1'000'003, "def", 0, 101});
  EXPECT_FALSE(directions_[kClient].syn);
  EXPECT_EQ(text(kClient), "abc");
  EXPECT_EQ(text(kServer), "def");
  EXPECT_EQ(streams_.missing(), 0U);
}

TEST_F(Streams_, KnowWhatIsMissingAtTheBeginningOfANewConnection) {
  add({kClient, kSent, 4, 0, "abc"});
  EXPECT_EQ(streams_.missing(), 4U);
}

TEST_F(Streams_, EndWithTheirEnds) {
  add({kClient, kSent, 0, 0, "abc"});
  add({kClient, kClosed, 3, 0, ""});
  EXPECT_TRUE(directions_[kClient].fin);
  EXPECT_FALSE(directions_[kServer].fin);
  // Read only when the other one had closed it.
  add({kServer, kReceived, 0, 0, "abc", 0, 1001});
  EXPECT_EQ(directions_[kClient].twice, 0U);
  add({kServer, kClosed, 0, 3, "", 0, 1001});
  EXPECT_TRUE(directions_[kServer].fin);
}

TEST_F(Streams_, OfANewConnectionBetweenTheSameAddressesHaveOtherNumbers) {
  add({kClient, kSent, 0, 0, "abc"});
  const std::uint32_t first = directions_[kClient].first;
  add({kClient, kClosed, 3, 0, ""});
  add({kClient, kSent, 0, 0, "xyz", 0, 900'000});
  EXPECT_NE(directions_[kClient].first, first);
}

TEST_F(Streams_, GoOnAfterTheyWereSilentForHours) {
  constexpr std::int64_t kHour = 3'600'000'000'000;
  add({kClient, kSent, 0, 0, "abc"});
  add({kServer, kSent, 0, 3, "xyz", 0, 1001});
  time_ += 2 * kHour;
  const unsigned syns = syns_;
  add({kServer, kSent, 3, 3, "uvw", 0, 1001});
  add({kClient, kSent, 3, 6, "def"});
  EXPECT_EQ(syns_, syns);
  EXPECT_EQ(text(kClient), "abcdef");
  EXPECT_EQ(text(kServer), "xyzuvw");
  EXPECT_EQ(streams_.missing(), 0U);
}

TEST_F(Streams_, AreReadLongAfterTheirSenderHasClosedThem) {
  add({kServer, kSent, 0, 0, "abc", 0, 1001});
  add({kClient, kReceived, 0, 0, "a"});
  add({kServer, kClosed, 3, 0, "", 0, 1001});
  time_ += 60'000'000'000;
  const unsigned syns = syns_;
  add({kClient, kReceived, 0, 1, "bc"});
  EXPECT_EQ(syns_, syns);
  EXPECT_EQ(text(kServer), "abc");
  EXPECT_EQ(directions_[kServer].twice, 0U);
  EXPECT_EQ(streams_.missing(), 0U);
}

TEST_F(Streams_, ThatWereForgottenAreInTheirMiddle) {
  add({kClient, kSent, 0, 0, "abc"});
  const unsigned syns = syns_;
  observe::Address other = address(kServer);
  for (std::uint32_t i = 0; i <= Streams::kMostConnections; ++i) {
    std::memcpy(other.bytes.data() + 12, &i, sizeof i);
    streams_.add({.kind = observe::Kind::tcp,
                  .what = kSent,
                  .role = observe::Role::none,
                  .user = 0,
                  .pid = 2,
                  .peer = 0,
                  .time = ++time_,
                  .sent = 0,
                  .received = 0,
                  .session = 0,
                  .opened = time_,
                  .local = other,
                  .remote = address(kClient),
                  .size = 0,
                  .bytes = {},
                  .name = {}});
  }
  add({kClient, kSent, 3, 0, "def"});
  EXPECT_EQ(syns_, syns);
  EXPECT_EQ(streams_.missing(), 0U);
}

TEST_F(Streams_, GoOnBeyondFourGigabytes) {
  constexpr std::uint64_t kFar = (std::uint64_t{1} << 32) - 2;
  add({kClient, kSent, kFar, 0, "abcd", 0, 100});
  add({kClient, kSent, kFar + 4, 0, "efgh", 0, 100});
  EXPECT_EQ(text(kClient), "abcdefgh");
}

}  // namespace
}  // namespace farcall::capture
