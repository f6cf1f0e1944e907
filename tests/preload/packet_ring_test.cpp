// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"
#include "one_way.hpp"
#include "preload/packet.hpp"

namespace farcall::preload {
namespace {

struct Messages : OneWay {
  explicit Messages(std::size_t ring_bytes = 8192) : OneWay(SOCK_SEQPACKET, ring_bytes) {}

  bool put(const std::string& text) {
    iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    return sender.way(ring) == Sender::Way::ring &&
           sender.put_message(ring, Span(&part, 1), ring.size);
  }
  bool send_by_kernel(const std::string& text) {
    sender.use_kernel(ring);
    if (!sender.enter_kernel(ring)) return false;
    if (text.empty()) sender.note_empty(ring);
    const bool sent = ::send(out.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
    sender.leave_kernel(ring, sent ? 1 : 0);
    return sent;
  }
  void reclaim(bool always) { (void)reclaim_now(sender, ring, out.get(), always, true); }
  // The message, or a word about it in brackets.
  std::string take(bool peek = false, std::size_t size = 8192) {
    std::string text(size, '\0');
    const iovec part{.iov_base = text.data(), .iov_len = size};
    std::size_t length = 0;
    const long got = receive_message_now(receiver, ring, in.get(), &part, 1, peek, nullptr, length);
    if (got == kNothing) return "(nothing)";
    if (got == 0) return "(end)";
    if (got != kMessage) return "(" + std::to_string(got) + ")";
    text.resize(std::min(size, length));
    return text;
  }
};

TEST(PacketRing, AMessageComesWholeOrNotAtAll) {
  Messages messages;
  messages.receiver.unwatch(messages.ring);
  ASSERT_TRUE(messages.put("one"));
  ASSERT_TRUE(messages.put(""));
  ASSERT_TRUE(messages.put("three"));
  EXPECT_EQ(messages.take(true), "one");
  EXPECT_EQ(messages.take(), "one");
  EXPECT_EQ(messages.take(), "");
  EXPECT_EQ(messages.take(false, 2), "th");
  EXPECT_EQ(messages.take(), "(nothing)");
}

TEST(PacketRing, AMessageGoesRoundTheRing) {
  Messages messages;
  messages.receiver.unwatch(messages.ring);
  for (int i = 0; i < 500; ++i) {
    const std::string text(static_cast<std::size_t>(i * 37 % 1000),
                           static_cast<char>('a' + i % 26));
    const std::string other(static_cast<std::size_t>(i % 90), 'o');
    ASSERT_TRUE(messages.put(text)) << i;
    ASSERT_TRUE(messages.put(other)) << i;
    ASSERT_EQ(messages.take(), text) << i;
    ASSERT_EQ(messages.take(), other) << i;
  }
}

TEST(PacketRing, AFullRingTakesNoPart) {
  Messages messages;
  messages.receiver.unwatch(messages.ring);
  int put = 0;
  while (messages.put("x" + std::to_string(put))) ++put;
  EXPECT_EQ(put, static_cast<int>(8192 / space_of_message(2)));
  for (int i = 0; i < put; ++i) EXPECT_EQ(messages.take(), "x" + std::to_string(i));
  EXPECT_EQ(messages.take(), "(nothing)");
}

TEST(PacketRing, WhatIsTakenBackComesByTheKernel) {
  Messages messages;
  messages.receiver.unwatch(messages.ring);
  ASSERT_TRUE(messages.put("one"));
  ASSERT_TRUE(messages.put(""));
  ASSERT_TRUE(messages.put("three"));
  EXPECT_EQ(messages.take(), "one");
  messages.reclaim(true);
  char bytes[10];
  EXPECT_EQ(::recv(messages.in.get(), bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT), 0);
  EXPECT_EQ(messages.take(), "");
  EXPECT_EQ(messages.take(), "three");
  EXPECT_EQ(messages.take(), "(nothing)");
}

// Each length is that of the second message.
TEST(PacketRing, WhatTheKilledHadSentComesOnce) {
  const std::string texts[] = {"one", std::string(500, '2'), "three"};
  for (std::size_t moved = 0; moved <= 3; ++moved) {
    Messages messages;
    messages.receiver.unwatch(messages.ring);
    for (const std::string& text : texts) ASSERT_TRUE(messages.put(text));
    iovec runs[2];
    ASSERT_NE(messages.sender.reclaim(messages.ring, true, runs), 0U);
    for (std::size_t i = 0; i < moved; ++i)
      ASSERT_EQ(::send(messages.out.get(), texts[i].data(), texts[i].size(), 0),
                static_cast<ssize_t>(texts[i].size()));
    messages.out.reset();
    for (const std::string& text : texts) {
      EXPECT_EQ(messages.take(true), text) << moved;
      EXPECT_EQ(messages.take(), text) << moved;
    }
    EXPECT_EQ(messages.take(), "(end)") << moved;
  }
}

TEST(PacketRing, AMessageMayFillTheRingAndBeginsWhereOneMay) {
  Messages messages;
  const std::size_t size = messages.ring.size;
  const std::uint64_t length = (size - space_of_message(0)) * 2 / 5;
  ASSERT_EQ(space_of_message(length), size);
  std::memcpy(messages.ring.bytes, &length, sizeof length);
  RingMessage found{};
  EXPECT_TRUE(message_at(messages.ring, 0, size, found));
  EXPECT_EQ(found.space, size);
  EXPECT_FALSE(message_at(messages.ring, 0, size - 1, found));
  const std::uint64_t none = 0;
  for (const std::uint64_t at : {8U, 16U, 32U, 64U})
    std::memcpy(messages.ring.bytes + at, &none, sizeof none);
  for (const std::uint64_t at : {8U, 16U, 32U})
    EXPECT_FALSE(message_at(messages.ring, at, size - at, found)) << at;
  EXPECT_TRUE(message_at(messages.ring, 64, size - 64, found));
}

TEST(PacketRing, ALengthThatCannotBeBreaksTheDirection) {
  const std::uint64_t lengths[] = {~std::uint64_t{0}, std::uint64_t{1} << 63, 8192, 8193, 4000, 769,
                                   (std::uint64_t{1} << 32) + 3,
                                   // Its room wraps around to that of an empty one.
                                   0xCCCC'CCCC'CCCC'CCCD};
  static_assert(space_of_message(0xCCCC'CCCC'CCCC'CCCD) == space_of_message(0));
  for (const std::uint64_t length : lengths) {
    Messages messages;
    messages.receiver.unwatch(messages.ring);
    ASSERT_TRUE(messages.put("one"));
    ASSERT_TRUE(messages.put("two"));
    std::memcpy(messages.ring.bytes + space_of_message(3), &length, sizeof length);
    EXPECT_EQ(lengths_of_messages(messages.ring, 0, 2 * space_of_message(3)), 3U) << length;
    EXPECT_EQ(messages.take(), "one");
    EXPECT_EQ(messages.take(), "(-104)") << length;
    EXPECT_TRUE(messages.receiver.broken());
  }
}

TEST(PacketRing, ASenderThatFindsNonsenseTakesThePeerForBroken) {
  Messages messages;
  messages.receiver.unwatch(messages.ring);
  ASSERT_TRUE(messages.put("one"));
  const std::uint64_t length = 70'000;
  std::memcpy(messages.ring.bytes, &length, sizeof length);
  messages.reclaim(true);
  EXPECT_EQ(messages.sender.way(messages.ring), Sender::Way::broken);
  char byte = 0;
  EXPECT_EQ(::recv(messages.in.get(), &byte, 1, MSG_DONTWAIT), -1);
}

TEST(PacketRing, TheEndIsNoMessage) {
  Messages messages;
  messages.receiver.unwatch(messages.ring);
  ASSERT_TRUE(messages.send_by_kernel(""));
  ::shutdown(messages.out.get(), SHUT_WR);
  EXPECT_EQ(messages.take(), "");
  messages.receiver.watch(messages.ring);
  EXPECT_EQ(messages.take(), "(end)");
}

std::string message_of(unsigned number) {
  const std::string name = std::to_string(number) + ":";
  return number % 11 == 0
             ? ""
             : name + std::string(number * 7 % 600, static_cast<char>('a' + number % 26));
}

// The kernel looks for messages, and then whether the peer has finished: see NoBytes.
TEST(PacketRing, TheKernelMaySayTooEarlyThatItIsTheEnd) {
  Messages messages;
  ASSERT_TRUE(messages.send_by_kernel("unread"));
  EXPECT_EQ(meaning_of_no_bytes(messages.receiver, messages.ring, messages.in.get()),
            NoBytes::message)
      << "the peer has not finished";
  ASSERT_EQ(::shutdown(messages.out.get(), SHUT_WR), 0);
  EXPECT_EQ(meaning_of_no_bytes(messages.receiver, messages.ring, messages.in.get()),
            NoBytes::early);
  messages.sender.note_empty(messages.ring);
  EXPECT_EQ(meaning_of_no_bytes(messages.receiver, messages.ring, messages.in.get()),
            NoBytes::message);
  EXPECT_EQ(messages.take(), "unread");
  EXPECT_EQ(meaning_of_no_bytes(messages.receiver, messages.ring, messages.in.get()), NoBytes::end);
  EXPECT_EQ(messages.take(), "(end)");
}

TEST(PacketRing, WhatThePeerHasCountedBeyondItsMessagesEndsToo) {
  Messages messages;
  ASSERT_TRUE(messages.send_by_kernel("read"));
  ASSERT_TRUE(messages.sender.enter_kernel(messages.ring));
  messages.sender.leave_kernel(messages.ring, 1);
  ASSERT_EQ(::shutdown(messages.out.get(), SHUT_WR), 0);
  EXPECT_EQ(messages.take(), "read");
  EXPECT_EQ(messages.take(true), "(end)");
  EXPECT_EQ(messages.take(), "(end)");
}

// A message of no bytes that nobody has counted stands for such a word of the kernel.
TEST(PacketRing, WhoIsToldOfTheEndTooEarlyLooksAgain) {
  Messages messages;
  ASSERT_EQ(::send(messages.out.get(), "", 0, 0), 0);
  ASSERT_TRUE(messages.send_by_kernel("unread"));
  ASSERT_EQ(::shutdown(messages.out.get(), SHUT_WR), 0);
  EXPECT_EQ(messages.take(), "unread");
  EXPECT_EQ(messages.take(), "(end)");
  EXPECT_EQ(messages.receiver.kernel_taken(), 1U);
}

// One thread sends by all ways, another receives by all ways.
TEST(PacketRing, NoMessageIsLostBetweenTheWays) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    Messages messages;
    constexpr unsigned kMany = 15'000;
    std::thread sending([&] {
      std::mt19937 random(seed);
      for (unsigned i = 0; i < kMany;) {
        const std::string text = message_of(i);
        const bool sent = random() % 32 != 0 && messages.put(text);
        if (sent ||
            ((messages.sender.in_kernel() || random() % 8 == 0) && messages.send_by_kernel(text)))
          ++i;
        else
          std::this_thread::yield();
        ASSERT_FALSE(messages.sender.broken()) << i;
        if (random() % 8 == 0) messages.reclaim(random() % 2 == 0);
      }
      messages.reclaim(true);
    });
    std::mt19937 random(seed + 1000);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (unsigned i = 0; i < kMany;) {
      if (messages.receiver.watched() && random() % 4 == 0)
        messages.receiver.unwatch(messages.ring);
      if (random() % 16 == 0) messages.receiver.watch(messages.ring);
      const bool peek = random() % 8 == 0;
      const std::string got = messages.take(peek);
      if (got == "(nothing)") {
        ASSERT_LT(std::chrono::steady_clock::now(), end) << "at " << i;
        continue;
      }
      ASSERT_EQ(got, message_of(i)) << "seed " << seed << (peek ? ", peeking" : "");
      if (!peek) ++i;
    }
    sending.join();
    EXPECT_EQ(messages.take(), "(nothing)");
  }
}

}  // namespace
}  // namespace farcall::preload
