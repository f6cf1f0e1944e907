// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "farcall/memory.hpp"
#include "one_way.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {
namespace {

// Puts what fits into the ring or, without waiting, into the kernel. kNothing: nothing fits now.
long send_now(Sender& sender, const Ring& ring, int fd, Span& from) {
  switch (sender.way(ring)) {
    case Sender::Way::broken: return -ECONNRESET;
    case Sender::Way::ring: {
      const std::size_t put = sender.put(ring, from);
      if (put != 0) return static_cast<long>(put);
      if (sender.broken()) return -ECONNRESET;
      if (!sender.closed(ring)) return kNothing;
      sender.use_kernel(ring);
      break;
    }
    case Sender::Way::kernel: break;
  }
  if (!sender.enter_kernel(ring)) return kNothing;
  const long sent = kernel_send(fd, from, from.left(), MSG_NOSIGNAL);
  sender.leave_kernel(ring, sent > 0 ? static_cast<std::size_t>(sent) : 0);
  if (sent > 0) from.skip(static_cast<std::size_t>(sent));
  return sent == -EAGAIN ? kNothing : sent;
}

struct Stream : OneWay {
  explicit Stream(std::size_t ring_bytes = 4096) : OneWay(SOCK_STREAM, ring_bytes) {}

  long send(const std::string& text) {
    iovec part{.iov_base = const_cast<char*>(text.data()), .iov_len = text.size()};
    Span span(&part, 1);
    return send_now(sender, ring, out.get(), span);
  }
  std::string receive(std::size_t size = 10'000, bool peek = false) {
    std::string text(size, '\0');
    iovec part{.iov_base = text.data(), .iov_len = size};
    Span span(&part, 1);
    const long got = receive_now(receiver, ring, in.get(), span, peek, nullptr);
    if (got == kNothing) return "(nothing)";
    if (got < 0) return "(error " + std::to_string(-got) + ")";
    if (got == 0) return "(end)";
    text.resize(static_cast<std::size_t>(got));
    return text;
  }
};

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

// What the receiver gives back may stand there.
TEST(Stream, WritesNothingIntoARingThatIsWatched) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("ring");
  EXPECT_EQ(stream.receive(), "ring");
  stream.receiver.watch_for_ever(stream.ring);
  std::fill_n(stream.ring.bytes, stream.ring.size, std::byte{'x'});
  EXPECT_EQ(stream.send("kernel"), 6);
  EXPECT_EQ(std::count(stream.ring.bytes, stream.ring.bytes + stream.ring.size, std::byte{'x'}),
            static_cast<std::ptrdiff_t>(stream.ring.size));
  EXPECT_FALSE(stream.sender.wrote_in_vain());
  EXPECT_EQ(stream.receive(), "kernel");
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
  const int before = room();
  for (const bool wanted : {true, false}) {
    {
      const RoomForAll all(socket.get(), wanted);
      EXPECT_EQ(room() > before, wanted);
    }
    EXPECT_EQ(room(), before);
  }
}

TEST(Stream, TakesMarksThatCannotBeForABrokenPeer) {
  Stream stream;
  stream.receiver.unwatch(stream.ring);
  stream.send("hello");
  stream.ring.control->tail.store(1 << 20);
  EXPECT_EQ(stream.receive(), "(error 104)");
  Stream other;
  other.ring.control->marks_made.store(1000);
  EXPECT_EQ(other.receive(), "(error 104)");
  Stream third;
  third.receiver.unwatch(third.ring);
  third.ring.control->head.store(17);
  EXPECT_EQ(third.send("x"), -ECONNRESET);
}

// The byte at an offset, different for offsets that are near each other.
std::uint8_t byte_at(std::uint64_t offset) {
  return static_cast<std::uint8_t>(offset * 0x9E3779B97F4A7C15 >> 56);
}

// One thread sends, another receives; both change between ring and kernel as they please. No byte
// may be lost or change its place, and nobody may sleep while there is something to read.
void exchange(std::uint64_t total, unsigned seed, std::size_t ring_bytes) {
  Stream stream(ring_bytes);
  std::atomic<std::uint64_t> slept{0};
  std::thread sending([&] {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> buffer;
    for (std::uint64_t sent = 0; sent < total;) {
      // The receiver may be the slower one and never find nothing.
      while (sent > total / 2 && slept == 0) std::this_thread::yield();
      const std::uint64_t size =
          std::min<std::uint64_t>(total - sent, 1 + random() % (random() % 16 == 0 ? 20'000 : 200));
      buffer.resize(size);
      for (std::uint64_t i = 0; i < size; ++i) buffer[i] = byte_at(sent + i);
      iovec part{.iov_base = buffer.data(), .iov_len = size};
      for (Span span(&part, 1); span.left() != 0;) {
        if (random() % 64 == 0) stream.sender.use_kernel(stream.ring);
        const long now = send_now(stream.sender, stream.ring, stream.out.get(), span);
        if (now > 0) {
          sent += static_cast<std::uint64_t>(now);
        } else {
          ASSERT_EQ(now, kNothing);
          if (!stream.sender.in_kernel() && random() % 4 != 0)
            std::this_thread::yield();
          else
            stream.sender.use_kernel(stream.ring);
          pollfd room{.fd = stream.out.get(), .events = POLLOUT, .revents = 0};
          if (stream.sender.in_kernel()) {
            ASSERT_EQ(::poll(&room, 1, 20'000), 1);
          }
        }
      }
      if (random() % 4 == 0)
        reclaim_now(stream.sender, stream.ring, stream.out.get(), random() % 2 == 0, false);
      if (random() % 256 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
    ::shutdown(stream.out.get(), SHUT_WR);
  });
  std::mt19937 random(seed + 1);
  std::vector<std::uint8_t> buffer(30'000);
  std::uint64_t received = 0;
  for (;;) {
    if (stream.receiver.watched() && random() % 2 == 0) stream.receiver.unwatch(stream.ring);
    iovec part{.iov_base = buffer.data(), .iov_len = 1 + random() % buffer.size()};
    Span span(&part, 1);
    if (random() % 8 == 0) {
      Span look(&part, 1);
      const long shown =
          receive_now(stream.receiver, stream.ring, stream.in.get(), look, true, nullptr);
      for (long i = 0; i < shown; ++i)
        ASSERT_EQ(buffer[static_cast<std::size_t>(i)],
                  byte_at(received + static_cast<std::uint64_t>(i)))
            << "shown at " << received + static_cast<std::uint64_t>(i) << ", seed " << seed;
    }
    long now = receive_now(stream.receiver, stream.ring, stream.in.get(), span, false, nullptr);
    if (now == kNothing) now = look_for_end(stream.receiver, stream.ring, stream.in.get());
    if (now == 0) break;
    if (now > 0) {
      for (long i = 0; i < now; ++i)
        ASSERT_EQ(buffer[static_cast<std::size_t>(i)],
                  byte_at(received + static_cast<std::uint64_t>(i)))
            << "at " << received + static_cast<std::uint64_t>(i) << ", seed " << seed;
      received += static_cast<std::uint64_t>(now);
      continue;
    }
    ASSERT_EQ(now, kNothing) << "seed " << seed;
    if (random() % 8 != 0) {
      std::this_thread::yield();
      continue;
    }
    stream.receiver.watch(stream.ring);
    const Receiver::Next next = stream.receiver.next(stream.ring);
    if (next.kind != Receiver::Next::nothing && next.kind != Receiver::Next::open) continue;
    ++slept;
    pollfd news{.fd = stream.in.get(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&news, 1, 20'000), 1) << "nobody woke the sleeper, seed " << seed;
  }
  EXPECT_EQ(received, total) << "seed " << seed;
  EXPECT_GT(slept, 0u);
  sending.join();
}

TEST(StreamStress, NeitherLosesNorMovesAByte) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    exchange(3'000'000, seed * 100, 4096);
    if (HasFatalFailure()) return;
  }
}

// A ring that begins anew, and then goes over to the kernel at once, while the receiver looks.
TEST(StreamStress, BeginsARingAnew) {
  constexpr std::size_t kFirst = 100;
  constexpr std::size_t kSecond = 5000;
  Stream stream(8192);
  stream.receiver.unwatch(stream.ring);
  std::atomic<bool> broken{false};
  int rounds = 0;
  std::thread sending([&] {
    const std::vector<char> bytes(kSecond);
    const auto wait_until = [&](auto holds) {
      for (unsigned looks = 1; !holds() && !broken; ++looks)
        if (looks % 1000 == 0) std::this_thread::yield();
    };
    const auto put = [&](std::size_t size) {
      iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = size};
      Span span(&part, 1);
      wait_until([&] {
        return stream.sender.way(stream.ring) == Sender::Way::ring &&
               stream.sender.put(stream.ring, span) != 0 && span.left() == 0;
      });
    };
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    while (rounds < 100'000 && !broken && std::chrono::steady_clock::now() < end) {
      put(kFirst);
      wait_until([&] { return stream.sender.unread(stream.ring) == 0; });
      put(kSecond);
      stream.sender.use_kernel(stream.ring);
      EXPECT_TRUE(stream.sender.enter_kernel(stream.ring));
      EXPECT_EQ(::send(stream.out.get(), "x", 1, MSG_NOSIGNAL), 1);
      stream.sender.leave_kernel(stream.ring, 1);
      wait_until([&] { return stream.ring.control->kernel_taken == stream.sender.kernel_sent(); });
      ++rounds;
    }
    ::shutdown(stream.out.get(), SHUT_WR);
  });
  std::vector<char> bytes(kSecond);
  std::uint64_t received = 0;
  for (long now = 1; (now > 0 || now == kNothing) && !broken;) {
    iovec part{.iov_base = bytes.data(), .iov_len = bytes.size()};
    Span span(&part, 1);
    now = receive_now(stream.receiver, stream.ring, stream.in.get(), span, false, nullptr);
    if (now == kNothing) now = look_for_end(stream.receiver, stream.ring, stream.in.get());
    if (now > 0) received += static_cast<std::uint64_t>(now);
    broken = stream.receiver.broken();
  }
  sending.join();
  EXPECT_FALSE(broken) << "behind " << received;
  EXPECT_EQ(received, (kFirst + kSecond + 1) * static_cast<std::uint64_t>(rounds));
}

TEST(StreamStress, KeepsTheOrderOfALargeRing) { exchange(40'000'000, 7, 256 * 1024); }

// Whatever stands in shared memory, both halves stay inside their own.
TEST(StreamStress, SurvivesAPeerThatScribbles) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    Stream stream;
    std::mt19937_64 random(seed);
    const std::string text(300, 'x');
    for (unsigned step = 0; step < 200; ++step) {
      auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(stream.memory.data());
      const std::uint64_t values[] = {random(),
                                      random() % 10'000,
                                      kOpenEnd,
                                      kFlags,
                                      0,
                                      words[0].load() + random() % 100,
                                      kWatched | random() % 5000,
                                      words[16].load() + random() % 100};
      static constexpr std::size_t kPlaces[] = {0,  16, 17, 18, 19, 32, 33, 34, 35,
                                                36, 48, 64, 65, 66, 67, 68, 69};
      words[kPlaces[random() % std::size(kPlaces)]].store(values[random() % std::size(values)]);
      if (random() % 3 == 0) stream.receiver.watch(stream.ring);
      if (random() % 3 == 0) stream.receiver.unwatch(stream.ring);
      if (random() % 8 == 0) stream.sender.use_kernel(stream.ring);
      if (random() % 8 == 0)
        reclaim_now(stream.sender, stream.ring, stream.out.get(), false, false);
      (void)stream.send(text.substr(0, 1 + random() % 299));
      (void)stream.receive(1 + random() % 500, random() % 4 == 0);
      (void)look_for_end(stream.receiver, stream.ring, stream.in.get());
    }
  }
}

}  // namespace
}  // namespace farcall::preload
