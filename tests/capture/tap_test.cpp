// SPDX-License-Identifier: Apache-2.0
//
// The ring of a tap, read by the process that writes it as another one would.
#include "observe/tap.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "capture/tap_reader.hpp"
#include "farcall/memory.hpp"
#include "observe/lease.hpp"

namespace farcall::capture {
namespace {

using observe::Entry;
using observe::Kind;
using observe::TapRecord;
using observe::TapRing;
using observe::TapRings;

observe::Description description(const char* name) {
  observe::Description made{.kind = Kind::ring, .role = observe::Role::writer};
  made.name = name;
  made.name_bytes = std::strlen(name);
  return made;
}

void set_tap(observe::Half& half, std::int64_t until) {
  __atomic_store_n(&half.tap, static_cast<std::uint64_t>(until), __ATOMIC_RELAXED);
}
void begin_tap(const Entry& entry) {
  for (observe::Half* half : {entry.sent(), entry.received()})
    set_tap(*half, observe::monotonic_ns() + 10'000'000'000);
}

TapReader reader_of_this(bool from_begin = false) {
  return {{.pid = ::getpid(), .user = ::geteuid(), .group = ::getegid()},
          reinterpret_cast<std::uintptr_t>(observe::first_process()),
          from_begin};
}

// All that has come.
struct Come {
  explicit Come(TapReader& reader) {
    lives = reader.read(batches);
    for (const auto& batch : batches)
      messages.insert(messages.end(), batch->messages.begin(), batch->messages.end());
  }
  std::vector<std::unique_ptr<Batch>> batches;
  std::vector<Message> messages;
  bool lives;
};

std::string text_of(const Message& message) {
  return {reinterpret_cast<const char*>(message.bytes.data()), message.bytes.size()};
}

TEST(Tap, HasWhatPassedWithWhatItWas) {
  const Entry entry(description("a name"));
  begin_tap(entry);
  TapReader reader = reader_of_this();
  observe::note_sent(entry.sent(), "first", 5);
  observe::note_sent(entry.sent(), "second", 6);
  observe::note_received(entry.received(), "third", 5);
  const Come batch(reader);
  ASSERT_FALSE(batch.messages.empty());
  ASSERT_EQ(batch.messages.size(), 3U);
  EXPECT_EQ(text_of(batch.messages[0]), "first");
  EXPECT_EQ(batch.messages[0].name, "a name");
  EXPECT_EQ(batch.messages[0].kind, Kind::ring);
  EXPECT_EQ(batch.messages[1].sent, 5U);
  EXPECT_EQ(batch.messages[1].size, 6U);
  EXPECT_TRUE(batch.messages[1].is_sent());
  EXPECT_EQ(batch.messages[2].received, 0U);
  EXPECT_EQ(batch.messages[2].sent, 11U);
  EXPECT_FALSE(batch.messages[2].is_sent());
  EXPECT_LE(batch.messages[0].time, batch.messages[2].time);
  EXPECT_TRUE(Come(reader).messages.empty());
  EXPECT_EQ(reader.lost(), 0U);
}

TEST(Tap, TakesALongMessageInPieces) {
  const Entry entry(description(""));
  begin_tap(entry);
  TapReader reader = reader_of_this();
  std::string message(100'000, 'x');
  for (std::size_t i = 0; i < message.size(); ++i) message[i] = static_cast<char>(i * 7 + i / 251);
  observe::note_sent(entry.sent(), message.data(), message.size());
  const Come batch(reader);
  ASSERT_FALSE(batch.messages.empty());
  std::string all;
  for (const Message& piece : batch.messages) {
    EXPECT_EQ(piece.sent, all.size());
    all += text_of(piece);
  }
  EXPECT_TRUE(all == message);
}

TEST(Tap, TakesADatagramWhole) {
  const Entry entry(description(""));
  begin_tap(entry);
  TapReader reader = reader_of_this();
  const std::string longest(65'507, 'x');  // of UDP
  observe::note_sent(entry.sent(), longest.data(), longest.size());
  const Come batch(reader);
  ASSERT_EQ(batch.messages.size(), 1U);
  EXPECT_EQ(batch.messages[0].size, longest.size());
  EXPECT_TRUE(text_of(batch.messages[0]) == longest);
}

TEST(Tap, SaysWhatCouldNotBeCopied) {
  const Entry entry(description(""));
  begin_tap(entry);
  TapReader reader = reader_of_this();
  const iovec part{.iov_base = const_cast<char*>("abc"), .iov_len = 3};
  observe::tap(*entry.sent(), &part, 1, 10, {});
  observe::tap(*entry.sent(), nullptr, 0, 7, {});
  const Come batch(reader);
  ASSERT_FALSE(batch.messages.empty());
  ASSERT_EQ(batch.messages.size(), 2U);
  EXPECT_EQ(text_of(batch.messages[0]), "abc");
  EXPECT_EQ(batch.messages[0].size, 10U);
  EXPECT_EQ(batch.messages[1].size, 7U);
  EXPECT_EQ(batch.messages[1].bytes.size(), 0U);
}

TEST(Tap, CountsExactlyWhatWasWrittenOver) {
  const Entry entry(description(""));
  begin_tap(entry);
  TapReader reader = reader_of_this();
  const std::string message(1000, 'm');
  constexpr std::uint64_t kMany = 3 * observe::TapRing::kBytes / 1000;
  for (std::uint64_t i = 0; i < kMany; ++i)
    observe::note_sent(entry.sent(), message.data(), message.size());
  const Come batch(reader);
  ASSERT_FALSE(batch.messages.empty());
  EXPECT_GT(batch.messages.size(), observe::TapRing::kBytes / 2000);
  EXPECT_EQ(reader.lost() + batch.messages.size(), kMany);
  // What is left are the last ones.
  EXPECT_EQ(batch.messages.back().sent, (kMany - 1) * message.size());
  for (const Message& one : batch.messages) EXPECT_EQ(one.bytes.size(), message.size());
}

TEST(Tap, EndsByItself) {
  const Entry entry(description(""));
  begin_tap(entry);
  TapReader reader = reader_of_this();
  observe::note_sent(entry.sent(), "before", 6);
  ASSERT_FALSE(Come(reader).messages.empty());
  set_tap(*entry.sent(), observe::monotonic_ns());
  observe::note_sent(entry.sent(), "after", 5);
  EXPECT_EQ(entry.sent()->tap, 0U);
  EXPECT_TRUE(Come(reader).messages.empty());
  // One for a year is nobody's wish.
  set_tap(*entry.sent(), observe::monotonic_ns() + 31'536'000'000'000'000);
  observe::note_sent(entry.sent(), "after", 5);
  EXPECT_EQ(entry.sent()->tap, 0U);
}

TEST(Tap, GivesItsMemoryBackAndIsUsedAgain) {
  const Entry entry(description(""));
  begin_tap(entry);
  observe::Process& process = *observe::first_process();
  __atomic_store_n(&process.tap_until, static_cast<std::uint64_t>(observe::monotonic_ns()),
                   __ATOMIC_RELAXED);
  observe::note_sent(entry.sent(), "before", 6);
  set_tap(*entry.sent(), observe::monotonic_ns());
  observe::note_sent(entry.sent(), "after", 5);
  EXPECT_EQ(process.tap_until, 0U);
  TapReader reader = reader_of_this();
  begin_tap(entry);
  observe::note_sent(entry.sent(), "again", 5);
  const Come batch(reader);
  ASSERT_FALSE(batch.messages.empty());
  EXPECT_EQ(text_of(batch.messages[0]), "again");
}

TEST(Tap, IsNotTheChilds) {
  const Entry entry(description(""));
  begin_tap(entry);
  observe::note_sent(entry.sent(), "parent", 6);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // Not tapped; and with a tap of its own, when somebody asks.
    bool right = entry.sent()->tap == 0 && observe::first_process()->tap_ring == 0;
    begin_tap(entry);
    TapReader reader = reader_of_this();
    observe::note_sent(entry.sent(), "child", 5);
    const Come batch(reader);
    right = right && batch.messages.size() == 1 && text_of(batch.messages[0]) == "child";
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Its memory is a process's own, which may say anything, and another thing at each look.
TEST(Tap, ATailThatMovesBackEndsTheReader) {
  constexpr std::size_t kBytes = TapRings::kControlBytes + TapRings::kRings * TapRing::kBytes;
  const Mapping memory = Mapping::anonymous_shared(kBytes);
  auto& rings = *reinterpret_cast<TapRings*>(memory.data());
  constexpr std::uint64_t kHigh = std::uint64_t{1} << 40;
  constexpr std::uint64_t kLow = std::uint64_t{1} << 39;
  rings.bytes = TapRing::kBytes;
  rings.magic = TapRings::kMagic;
  rings.rings[0].tail = kHigh;
  observe::prepare();
  std::uint64_t& where = observe::first_process()->tap_ring;
  const std::uint64_t before = std::exchange(where, reinterpret_cast<std::uint64_t>(&rings));
  std::atomic<bool> over{false};
  std::thread liar([&] {
    for (std::uint64_t i = 0; !over; ++i) rings.rings[0].tail = i % 2 == 0 ? kLow : kHigh;
  });
  bool lives = true;
  const std::int64_t end = observe::monotonic_ns() + 60'000'000'000;
  while (lives && observe::monotonic_ns() < end) {
    TapReader reader = reader_of_this(true);
    lives = Come(reader).lives;
  }
  over = true;
  liar.join();
  where = before;
  EXPECT_FALSE(lives);
}

TEST(Tap, IsReadWholeWhileThreadsWrite) {
  constexpr unsigned kThreads = 3;
  constexpr std::uint64_t kEach = 20'000;
  std::vector<Entry> entries;
  for (unsigned i = 0; i < kThreads; ++i) entries.emplace_back(description(""));
  for (const Entry& entry : entries) begin_tap(entry);
  TapReader reader = reader_of_this();
  std::atomic<unsigned> running{kThreads};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (std::uint64_t n = 0; n < kEach; ++n) {
        // Each byte says whose message it is.
        std::array<char, 300> message;
        message.fill(static_cast<char>('a' + i));
        observe::note_sent(entries[i].sent(), message.data(), 1 + n % message.size());
      }
      running.fetch_sub(1);
    });
  std::uint64_t taken = 0;
  bool all_whole = true;
  for (bool last = false; !last;) {
    last = running.load() == 0;
    const Come batch(reader);
    taken += batch.messages.size();
    for (const Message& message : batch.messages) {
      const auto first = message.bytes.empty() ? std::byte{} : message.bytes.front();
      all_whole = all_whole && message.bytes.size() == message.size && !message.bytes.empty() &&
                  std::all_of(message.bytes.begin(), message.bytes.end(),
                              [&](std::byte byte) { return byte == first; });
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(all_whole);
  EXPECT_EQ(taken + reader.lost(), kThreads * kEach);
  EXPECT_GT(taken, 0U);
}

}  // namespace
}  // namespace farcall::capture
