// SPDX-License-Identifier: Apache-2.0
//
// Bytes of a stream between two threads that change between ring and kernel, and peers that
// scribble.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "preload/transfer.hpp"
#include "ring_stream.hpp"

namespace farcall::preload {
namespace {

// The byte at an offset, different for offsets that are near each other.
std::uint8_t byte_at(std::uint64_t offset) {
  return static_cast<std::uint8_t>(offset * 0x9E3779B97F4A7C15 >> 56);
}

// Changes between ring and kernel as it pleases, and does not end before the receiver has slept.
void send_all(Stream& stream, std::uint64_t total, unsigned seed,
              const std::atomic<std::uint64_t>& slept) {
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
    if (random() % 256 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
  }
  ::shutdown(stream.out.get(), SHUT_WR);
}

// Changes as it pleases, too, and does not sleep while there is something to read.
void receive_all(Stream& stream, std::uint64_t total, unsigned seed,
                 std::atomic<std::uint64_t>& slept) {
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
}

// One thread sends, another receives: no byte may be lost or change its place.
void exchange(std::uint64_t total, unsigned seed, std::size_t ring_bytes) {
  Stream stream(ring_bytes);
  std::atomic<std::uint64_t> slept{0};
  std::thread sending([&] { send_all(stream, total, seed, slept); });
  receive_all(stream, total, seed, slept);
  // The sender would not end by itself.
  if (::testing::Test::HasFatalFailure()) std::terminate();
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
