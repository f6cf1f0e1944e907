// SPDX-License-Identifier: Apache-2.0
//
// One direction of a stream: what goes through the ring, what through the kernel, and what is taken
// back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "farcall/memory.hpp"
#include "preload/transfer.hpp"
#include "raw_word.hpp"
#include "ring_stream.hpp"

namespace farcall::preload {
namespace {

TEST(Stream, BeginsInTheKernel) {
  Stream stream;
  EXPECT_EQ(stream.send("hello"), 5);
  EXPECT_EQ(kernel_queued(stream.in.get()), 5);
  EXPECT_EQ(stream.receive(), "hello");
}

TEST(Stream, GoesThroughTheRingOnceTheReceiverIsAwake) {
  Stream stream;
  stream.send("by kernel");
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send(", by ring"), 9);
  EXPECT_EQ(kernel_queued(stream.in.get()), 9);
  EXPECT_EQ(stream.receive(), "by kernel, by ring");
  EXPECT_EQ(stream.receive(), "(nothing)");
}

TEST(Stream, GoesBackToTheKernelWhenTheReceiverSleeps) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("ring ");
  stream.receiver.watch(stream.ring);
  stream.send("kernel ");
  EXPECT_EQ(kernel_queued(stream.in.get()), 7);
  stream.receiver.unwatch(stream.ring);
  stream.send("ring again");
  EXPECT_EQ(stream.receive(), "ring kernel ring again");
}

// Who looks in vain on that account sleeps, and the sender cannot publish.
TEST(Stream, IsNoNewsWhereTheSenderIsOnlyAboutToPublish) {
  Stream stream(16384);
  EXPECT_EQ(stream.send("by kernel"), 9);
  EXPECT_TRUE(stream.receiver.may_have_news(stream.ring));
  EXPECT_EQ(stream.receive(), "by kernel");
  stream.receiver.unwatch(stream.ring);
  EXPECT_FALSE(stream.receiver.may_have_news(stream.ring));
  // It has come back to the ring.
  EXPECT_EQ(stream.sender.way(stream.ring), Sender::Way::ring);
  EXPECT_FALSE(stream.receiver.may_have_news(stream.ring));
  const std::string pages(5000, 'p');
  EXPECT_EQ(stream.send(pages), static_cast<ssize_t>(pages.size()));
  EXPECT_TRUE(stream.receiver.may_have_news(stream.ring));
  EXPECT_TRUE(stream.receive() == pages);
  // It begins the ring anew.
  const std::uint64_t before = stream.ring.control->head;
  Span none(nullptr, 0);
  EXPECT_EQ(stream.sender.put(stream.ring, none), 0U);
  EXPECT_GT(stream.ring.control->head, before);
  EXPECT_FALSE(stream.receiver.may_have_news(stream.ring));
  stream.send("x");
  EXPECT_TRUE(stream.receiver.may_have_news(stream.ring));
  EXPECT_EQ(stream.receive(), "x");
  // What is left in the kernel is news.
  stream.receiver.watch(stream.ring);
  stream.send("kernel");
  stream.receiver.unwatch(stream.ring);
  EXPECT_TRUE(stream.receiver.may_have_news(stream.ring));
  EXPECT_EQ(stream.sender.way(stream.ring), Sender::Way::ring);
  EXPECT_TRUE(stream.receiver.may_have_news(stream.ring));
  EXPECT_EQ(stream.receive(), "kernel");
}

// A stream whose receiver is about to leave, or only waits for the kernel. Returns whether what was
// sent stands in the ring nevertheless.
bool writes_into(Stream& stream, std::uint64_t handback, const std::string& text) {
  stream.receiver.unwatch(stream.ring);
  stream.send("ring");
  EXPECT_EQ(stream.receive(), "ring");
  stream.receiver.watch_for_ever(stream.ring);
  raw(stream.ring.control->handback) = handback;
  std::fill_n(stream.ring.bytes, stream.ring.size, std::byte{'x'});
  EXPECT_EQ(stream.send(text), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(stream.receive(), text);
  return std::count(stream.ring.bytes, stream.ring.bytes + stream.ring.size, std::byte{'x'}) !=
         static_cast<std::ptrdiff_t>(stream.ring.size);
}

// What the receiver gives back may stand there.
TEST(Stream, WritesNothingIntoARingThatItsReceiverHasLeft) {
  Stream stream;
  EXPECT_FALSE(writes_into(stream, HandbackWord::kDone, "kernel"));
  EXPECT_FALSE(stream.sender.wrote_in_vain());
}

TEST(Stream, WritesFewBytesInVainIntoARingThatIsWatched) {
  Stream few;
  EXPECT_TRUE(writes_into(few, HandbackWord::kNone, "kernel"));
  EXPECT_TRUE(few.sender.wrote_in_vain());
  Stream many;
  EXPECT_FALSE(writes_into(many, HandbackWord::kNone, std::string(2000, 'm')));
  EXPECT_FALSE(many.sender.wrote_in_vain());
}

// Bytes that are being taken back come through the kernel before the receiver can know of it. One
// that meets this each time is never behind by more than it was once.
TEST(Stream, IsNotLeftBehindByWhoTakesBackAgainAndAgain) {
  constexpr std::size_t kRing = 16384;
  Stream stream(kRing);
  stream.receiver.unwatch(stream.ring);
  const std::string text(5000, 'x');
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    ASSERT_EQ(stream.send(text), 5000);
    ASSERT_NE(stream.sender.unread(stream.ring), 0U) << "it went through the kernel";
    iovec runs[2];
    const std::size_t count = stream.sender.reclaim(stream.ring, false, runs);
    ASSERT_NE(count, 0U);
    ASSERT_TRUE(stream.sender.enter_kernel(stream.ring));
    const Span span(runs, count);
    ASSERT_EQ(kernel_send(stream.out.get(), span, span.left(), MSG_NOSIGNAL), 5000);
    stream.sender.leave_kernel(stream.ring, 5000);
    EXPECT_EQ(stream.receive(), text);
    stream.sender.reclaimed(stream.ring, 5000);
    stream.receiver.unwatch(stream.ring);
  }
  EXPECT_EQ(stream.receive(), "(nothing)");
}

TEST(Stream, IsNotEmptyWhileBytesAreTakenBack) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  EXPECT_TRUE(stream.receiver.emptied(stream.ring));
  stream.send("ring");
  iovec runs[2];
  ASSERT_EQ(stream.sender.reclaim(stream.ring, true, runs), 1U);
  EXPECT_FALSE(stream.receiver.emptied(stream.ring));
  // In vain.
  stream.sender.reclaimed(stream.ring, 0);
  EXPECT_FALSE(stream.receiver.emptied(stream.ring));
  EXPECT_EQ(stream.receive(), "ring");
  EXPECT_TRUE(stream.receiver.emptied(stream.ring));
}

TEST(Stream, ShowsWhatIsInFrontWithoutTakingIt) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("ring ");
  stream.receiver.watch(stream.ring);
  stream.send("kernel");
  EXPECT_EQ(stream.receive(100, true), "ring kernel");
  EXPECT_EQ(stream.receive(3, true), "rin");
  EXPECT_EQ(stream.receive(), "ring kernel");
}

TEST(Stream, ShowsNothingOutOfItsPlace) {
  Stream stream;
  for (int round = 0; round < 3; ++round) {
    stream.receiver.unwatch(stream.ring);
    stream.send("ring ");
    stream.receiver.watch(stream.ring);
    stream.send("kernel ");
  }
  EXPECT_EQ(stream.receive(100, true), "ring kernel ring kernel ring kernel ");
  EXPECT_EQ(stream.receive(14, true), "ring kernel ri");
  EXPECT_EQ(stream.receive(), "ring kernel ring kernel ring kernel ");
}

TEST(Stream, SpillsIntoTheKernelWhenTheRingIsFull) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send(std::string(5000, 'r')), 4096);
  EXPECT_EQ(stream.send("x"), kNothing);
  stream.sender.use_kernel(stream.ring);
  EXPECT_EQ(stream.send("k"), 1);
  EXPECT_EQ(stream.receive(), std::string(4096, 'r') + "k");
  EXPECT_EQ(stream.send("back"), 4);
  EXPECT_EQ(kernel_queued(stream.in.get()), 0);
  EXPECT_EQ(stream.receive(), "back");
}

TEST(Stream, TakesBackWhatNobodyCameFor) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send("first "), 6);
  EXPECT_EQ(stream.receive(3), "fir");
  reclaim_now(stream.sender, stream.ring, stream.out.get(), false, false);
  EXPECT_EQ(kernel_queued(stream.in.get()), 3);
  EXPECT_EQ(stream.send("second"), 6);
  EXPECT_EQ(kernel_queued(stream.in.get()), 9);
  EXPECT_EQ(stream.receive(), "st second");
  EXPECT_TRUE(stream.receiver.watched());
  EXPECT_EQ(stream.receiver.reclaims(), 1u);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send("third"), 5);
  EXPECT_EQ(kernel_queued(stream.in.get()), 0);
  EXPECT_EQ(stream.receive(), "third");
}

TEST(Stream, TakesBackBehindTheKernelWhatMustBeThereInTheEnd) {
  Stream stream;
  stream.send("kernel ");
  stream.receiver.unwatch(stream.ring);
  stream.send("ring ");
  EXPECT_EQ(stream.receive(2), "ke");
  reclaim_now(stream.sender, stream.ring, stream.out.get(), true, false);
  EXPECT_EQ(kernel_queued(stream.in.get()), 10);
  stream.send("more");
  EXPECT_EQ(stream.receive(100, true), "rnel ring more");
  EXPECT_EQ(stream.receive(), "rnel ring more");
}

TEST(Stream, TakesNothingBackWhereTheKernelTells) {
  Stream stream;
  stream.send("kernel ");
  stream.receiver.unwatch(stream.ring);
  stream.send("ring");
  reclaim_now(stream.sender, stream.ring, stream.out.get(), false, false);
  EXPECT_EQ(kernel_queued(stream.in.get()), 7);
  EXPECT_EQ(stream.receive(), "kernel ring");
}

TEST(Stream, LeavesInTheRingWhatTheKernelHasNoRoomFor) {
  Stream stream(1 << 20);
  const int small = 1;
  ASSERT_EQ(::setsockopt(stream.out.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
  stream.receiver.unwatch(stream.ring);
  std::string text(500'000, ' ');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>('a' + i / 7 % 26);
  EXPECT_EQ(stream.send(text), 500'000);
  reclaim_now(stream.sender, stream.ring, stream.out.get(), false, false);
  const long moved = kernel_queued(stream.in.get());
  ASSERT_GT(moved, 0);
  ASSERT_LT(moved, 500'000);
  std::string all;
  while (all.size() < text.size()) {
    const std::string piece = stream.receive(100'000);
    ASSERT_NE(piece, "(nothing)") << "after " << all.size();
    all += piece;
  }
  EXPECT_EQ(all, text);
}

TEST(Stream, WhatIsBeingTakenBackCannotBeTaken) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("between");
  iovec runs[2];
  ASSERT_EQ(stream.sender.reclaim(stream.ring, false, runs), 1u);
  // The other end is in the middle of it: there is nothing yet, and the kernel will tell.
  EXPECT_EQ(stream.receive(), "(nothing)");
  EXPECT_TRUE(stream.receiver.watched());
  EXPECT_TRUE(stream.receiver.reclaim_unfinished(stream.ring));
  stream.sender.reclaimed(stream.ring, 0);
  EXPECT_FALSE(stream.receiver.reclaim_unfinished(stream.ring));
  EXPECT_EQ(stream.receive(), "between");
}

// How far a sender had come that was killed while it took back what nobody had come for.
enum class Died : std::uint8_t { sending, counting, with_the_mark_made };

std::string all_after_death(Died when, std::size_t moved, bool behind_kernel, bool looks) {
  const std::string text = "in the ring";
  Stream stream;
  if (behind_kernel) stream.send("kernel, ");
  stream.receiver.unwatch(stream.ring);
  stream.send(text);
  iovec runs[2];
  EXPECT_EQ(stream.sender.reclaim(stream.ring, true, runs), 1U);
  EXPECT_EQ(::send(stream.out.get(), text.data(), moved, 0), static_cast<ssize_t>(moved));
  if (when != Died::sending) {
    EXPECT_TRUE(stream.sender.enter_kernel(stream.ring));
    stream.sender.leave_kernel(stream.ring, moved);
  }
  if (when == Died::with_the_mark_made) {
    const std::uint64_t head = stream.ring.control->head;
    stream.sender.reclaimed(stream.ring, moved);
    stream.ring.control->head = head;
  }
  std::string all;
  if (looks && (moved != 0 || behind_kernel)) all += stream.receive();
  stream.out.reset();
  for (;;) {
    const std::string seen = stream.receive(1, true);
    EXPECT_EQ(stream.receive(1), seen) << "behind " << all;
    if (seen.size() != 1) return all + (seen == "(end)" ? "" : seen);
    all += seen;
  }
}

TEST(Stream, WhatTheKilledHadSentComesOnce) {
  for (const Died when : {Died::sending, Died::counting, Died::with_the_mark_made})
    for (const std::size_t moved : {0U, 4U, 11U})
      for (const bool behind_kernel : {false, true})
        for (const bool looks : {false, true})
          EXPECT_EQ(all_after_death(when, moved, behind_kernel, looks),
                    behind_kernel ? "kernel, in the ring" : "in the ring")
              << static_cast<int>(when) << ", " << moved << ", " << looks;
}

TEST(Stream, WhoHasShutDownDoesNotTakeThePeerForDead) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("bytes");
  iovec runs[2];
  ASSERT_EQ(stream.sender.reclaim(stream.ring, true, runs), 1U);
  stream.ring.control->receiver_finished = 1;
  ASSERT_EQ(::shutdown(stream.in.get(), SHUT_RD), 0);
  EXPECT_EQ(stream.receive(), "(end)");
  stream.sender.reclaimed(stream.ring, 0);
  EXPECT_EQ(stream.receive(), "bytes");
}

TEST(Stream, TouchesLittleOfALargeRing) {
  Stream stream(1 << 20);
  stream.receiver.unwatch(stream.ring);
  for (int i = 0; i < 100'000; ++i) {
    ASSERT_EQ(stream.send("a message of some bytes"), 23);
    ASSERT_EQ(stream.receive(), "a message of some bytes");
  }
  EXPECT_EQ(kernel_queued(stream.in.get()), 0);
  const std::byte* const bytes = stream.ring.bytes;
  EXPECT_TRUE(std::all_of(bytes + 8192, bytes + stream.ring.size,
                          [](std::byte byte) { return byte == std::byte{}; }));
}

TEST(Stream, EndsWhenEverythingHasBeenRead) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("last words");
  stream.out.reset();
  EXPECT_EQ(look_for_end(stream.receiver, stream.ring, stream.in.get()), kNothing);
  EXPECT_EQ(stream.receive(), "last words");
  EXPECT_EQ(look_for_end(stream.receiver, stream.ring, stream.in.get()), 0);
}

// The program finds its socket as it was.
TEST(RoomForAll, IsThereForAsLongAsItIsNeeded) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd socket(ends[0]);
  const UniqueFd peer(ends[1]);
  const auto room = [fd = socket.get()] {
    int bytes = 0;
    socklen_t size = sizeof bytes;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, &size), 0);
    return bytes;
  };
  const auto locks = [fd = socket.get()] {
    int bits = 0;
    socklen_t size = sizeof bits;
    EXPECT_EQ(::getsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &bits, &size), 0);
    return bits;
  };
  const int before = room();
  for (const bool wanted : {true, false}) {
    {
      const RoomForAll all(socket.get(), wanted ? 100'000 : 0);
      EXPECT_EQ(room() > before, wanted);
    }
    EXPECT_EQ(room(), before);
    EXPECT_EQ(locks(), 0) << "the kernel does not choose any more";
  }
}

// As many as the kernel takes at once, beside what waits there.
TEST(Stream, HoldsNoMoreThanTheKernelTakes) {
  Stream stream(65'536);
  stream.sender.limit(stream.ring, 10'000);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send(std::string(20'000, 'r')), 10'000);
  EXPECT_EQ(stream.send("more"), kNothing);
  EXPECT_EQ(stream.receive(4000).size(), 4000U);
  EXPECT_EQ(stream.send(std::string(20'000, 'r')), 4000);
}

TEST(Stream, StaysInTheKernelWhereThatHasNoRoomForTheRing) {
  Stream stream(4096);
  stream.sender.limit(stream.ring, 5000);
  EXPECT_EQ(stream.sender.most_beside(), 904U);
  EXPECT_EQ(stream.send(std::string(1000, 'k')), 1000);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.sender.way(stream.ring), Sender::Way::crowded);
  EXPECT_EQ(stream.receive(500).size(), 500U);
  EXPECT_EQ(stream.sender.way(stream.ring), Sender::Way::ring);
}

TEST(Stream, LeavesTheKernelWhereItsReceiverHasWhatWasSent) {
  Stream stream(4096);
  stream.sender.limit(stream.ring, 5000);
  EXPECT_EQ(stream.send(std::string(1000, 'k')), 1000);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.sender.way(stream.ring), Sender::Way::crowded);
  EXPECT_EQ(stream.sender.way(stream.ring, true), Sender::Way::ring);
}

// What is put behind the rest would come on top of what fills the kernel.
TEST(Stream, PutsNothingBehindWhatIsTakenBackInPart) {
  Stream stream(65'536);
  stream.sender.limit(stream.ring, 65'536);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send(std::string(1000, 'r')), 1000);
  iovec runs[2];
  ASSERT_EQ(stream.sender.reclaim(stream.ring, true, runs), 1U);
  ASSERT_TRUE(stream.sender.enter_kernel(stream.ring));
  ASSERT_EQ(::send(stream.out.get(), runs[0].iov_base, 400, 0), 400);
  stream.sender.leave_kernel(stream.ring, 400);
  stream.sender.reclaimed(stream.ring, 400);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send("more"), kNothing);
  EXPECT_EQ(stream.receive(400), std::string(400, 'r'));
  EXPECT_EQ(stream.send("more"), 4);
  EXPECT_EQ(stream.receive(), std::string(600, 'r') + "more");
}

TEST(Stream, PutsMoreBehindWhatIsTakenBackInPartWhereTheKernelHasRoomForAll) {
  Stream stream(65'536);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send(std::string(1000, 'r')), 1000);
  iovec runs[2];
  ASSERT_EQ(stream.sender.reclaim(stream.ring, true, runs), 1U);
  ASSERT_TRUE(stream.sender.enter_kernel(stream.ring));
  ASSERT_EQ(::send(stream.out.get(), runs[0].iov_base, 400, 0), 400);
  stream.sender.leave_kernel(stream.ring, 400);
  stream.sender.reclaimed(stream.ring, 400);
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send("more"), 4);
  EXPECT_EQ(stream.receive(400), std::string(400, 'r'));
  EXPECT_EQ(stream.receive(), std::string(600, 'r') + "more");
}

// The peer that asks waits until nobody is in the middle of that.
TEST(Stream, DoesNotCountASendThatIsNotToBe) {
  Stream stream;
  raw(stream.ring.control->handback) = HandbackWord::kAsked;
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(stream.sender.enter_kernel(stream.ring));
    EXPECT_EQ(stream.ring.control->kernel_sending.load(), 0U);
    EXPECT_FALSE(stream.sender.busy());
  }
  raw(stream.ring.control->handback) = HandbackWord::kDone;
  ASSERT_TRUE(stream.sender.enter_kernel(stream.ring));
  EXPECT_EQ(stream.ring.control->kernel_sending.load(), 1U);
  stream.sender.leave_kernel(stream.ring, 0);
  EXPECT_EQ(stream.ring.control->kernel_sending.load(), 0U);
}

// Wherever it stands, and however the bytes around it are divided.
TEST(Stream, ADoorbellIsTakenOutOfAnyPart) {
  for (std::size_t at = 0; at < 9; ++at)
    for (std::size_t first = 0; first <= 9; ++first) {
      Stream stream;
      stream.ring.control->doorbell.store(at + 1);
      std::string text = "abcdefgh";
      text.insert(at, 1, '!');
      const iovec parts[2] = {{.iov_base = text.data(), .iov_len = first},
                              {.iov_base = text.data() + first, .iov_len = 9 - first}};
      ASSERT_EQ(without_doorbell(stream.receiver, stream.ring, parts, 2, 9), 8U);
      EXPECT_EQ(text.substr(0, 8), "abcdefgh") << at << " of " << first;
    }
}

}  // namespace
}  // namespace farcall::preload
