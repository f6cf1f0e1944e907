// SPDX-License-Identifier: Apache-2.0
//
// Packets that are nearly what they should be.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"
#include "farcall/socket.hpp"
#include "harness/ancillary_message.hpp"
#include "harness/child.hpp"
#include "process/identity.hpp"
#include "socket/answers.hpp"

namespace farcall::packets {
namespace {

using Kind = Packet::Kind;

// As anybody may send it who makes no packet of it.
void send_by_hand(int socket, std::span<const std::byte> bytes, int fd = -1) {
  const std::span<const int> descriptors(&fd, fd >= 0 ? 1 : 0);
  ASSERT_EQ(test::send_with_descriptors(socket, bytes, descriptors, MSG_DONTWAIT),
            static_cast<ssize_t>(bytes.size()));
}

TEST(Packet, ADoorbellBringsNothing) {
  const auto [here, there] = packet_socket_pair();
  const std::array<std::byte, 1> ring{};
  send_by_hand(here.get(), ring);
  EXPECT_EQ(take_packet(there.get()).kind, Kind::doorbell);
  send_by_hand(here.get(), ring, here.get());
  const Packet packet = take_packet(there.get());
  EXPECT_EQ(packet.kind, Kind::garbage);
  EXPECT_EQ(packet.descriptors.size(), 1U) << "they come whatever the kind is";
}

// Whether another one belongs to it is said by 0 and 1 alone.
TEST(Packet, ThatIsFollowedByNeitherNoneNorOneIsGarbage) {
  constexpr std::size_t kMore = 5;  // where that stands
  const auto [here, there] = packet_socket_pair();
  send_descriptors(here.get(), {}, 7);
  std::array<std::byte, 64> bytes{};
  const ssize_t size = ::recv(there.get(), bytes.data(), bytes.size(), 0);
  ASSERT_GT(size, static_cast<ssize_t>(kMore));
  for (const int more : {0, 1, 2, 255}) {
    bytes[kMore] = static_cast<std::byte>(more);
    send_by_hand(here.get(), std::span(bytes).first(static_cast<std::size_t>(size)));
    const Packet packet = take_packet(there.get());
    EXPECT_EQ(packet.kind, more <= 1 ? Kind::descriptors : Kind::garbage) << more;
    EXPECT_EQ(packet.more, more == 1) << more;
  }
}

// The kernel tells of it once in another way than of others.
TEST(Packet, OfAPeerThatHasLeftSomeUnreadIsTheEnd) {
  auto [here, there] = packet_socket_pair();
  send_descriptors(there.get(), {}, 7);
  here.reset();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(take_packet(there.get()).kind, Kind::closed) << i;
}

TEST(Packet, IsLookedAtBeforeItIsTaken) {
  const auto [here, there] = packet_socket_pair();
  EXPECT_FALSE(descriptors_come_next(there.get()));
  const Credentials self{.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
  send_credentials(here.get(), self, 3);
  EXPECT_FALSE(descriptors_come_next(there.get())) << "it brings ids";
  (void)take_packet(there.get());
  const std::array<std::byte, 1> ring{};
  send_by_hand(here.get(), ring);
  EXPECT_FALSE(descriptors_come_next(there.get())) << "it is a doorbell";
  (void)take_packet(there.get());
  send_descriptors(here.get(), std::array{here.get()});
  EXPECT_TRUE(descriptors_come_next(there.get()));
  EXPECT_TRUE(descriptors_come_next(there.get())) << "it is still there";
  EXPECT_EQ(take_packet(there.get()).descriptors.size(), 1U);
}

TEST(Packet, ContentHasExactlyItsSize) {
  const auto [here, there] = packet_socket_pair();
  std::array<std::byte, 16> into{};
  EXPECT_EQ(take_content(there.get(), into).kind, Kind::nothing);
  std::array<std::byte, 32> bytes{};
  for (const std::size_t size : {std::size_t{15}, into.size(), std::size_t{17}, bytes.size()}) {
    send_by_hand(here.get(), std::span(bytes).first(size));
    EXPECT_EQ(take_content(there.get(), into).kind,
              size == into.size() ? Kind::content : Kind::garbage)
        << size;
  }
}

// Answers go to the process that asks, and to no other that could name itself so.
TEST(Answers, AreForTheProcessThatHasMadeTheirSocket) {
  const auto [here, there] = packet_socket_pair();
  const Credentials self{.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
  EXPECT_TRUE(made_by_sender(there.get(), self));
  for (const int which : {0, 1, 2}) {
    Credentials other = self;
    if (which == 0) ++other.pid;
    if (which == 1) ++other.uid;
    if (which == 2) ++other.gid;
    EXPECT_FALSE(made_by_sender(there.get(), other)) << which;
  }
  const auto [stream, end] = socket_pair();
  EXPECT_FALSE(made_by_sender(stream.get(), self)) << "it is no packet socket";
}

// In namespaces: all those who have no number there look alike.
TEST(Answers, AreForNobodyWhoHasNoNumber) {
  test::Child probe([] {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(1);
  });
  if (probe.join() != 0) GTEST_SKIP() << "this system permits no namespaces";
  test::in_child([] {
    ASSERT_EQ(::unshare(CLONE_NEWUSER), 0);
    const auto [mine, theirs] = packet_socket_pair();
    const Credentials unknown{.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
    ASSERT_TRUE(process::is_overflow_id(unknown.uid));
    EXPECT_FALSE(made_by_sender(theirs.get(), unknown));
  });
}

TEST(FdMessage, WhatThisProcessHasNoDescriptorForIsNotTakenForNonsense) {
  using test::kAddressSanitizer;
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  test::in_child([] {
    const auto [here, there] = socket_pair();
    const std::array<std::byte, 8> bytes{};
    const std::array one{STDERR_FILENO};
    send_fd_message(here.get(), {}, one, Deadline::now());
    send_fd_message(here.get(), bytes, one, Deadline::now());
    const int next = ::dup(STDERR_FILENO);
    ASSERT_EQ(::close(next), 0);
    const rlimit full{.rlim_cur = static_cast<rlim_t>(next), .rlim_max = 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
    for (const char* what : {"descriptors alone", "bytes behind them"}) {
      int error = 0;
      try {
        (void)receive_fd_message(there.get(), Deadline::now());
      } catch (const SystemError& failure) {
        error = failure.code().value();
      }
      EXPECT_EQ(error, EMFILE) << what;
    }
  });
}

// Whatever kind of socket it is.
TEST(FdMessage, AFullSocketIsWaitedForUntilTheDeadline) {
  const auto [here, there] = socket_pair();
  std::array<char, 4096> bytes{};
  while (::send(here.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
  }
  for (const Deadline deadline : {Deadline::now(), Deadline::after(std::chrono::milliseconds(5))}) {
    int error = 0;
    try {
      send_fd_message(here.get(), {.bytes = std::vector<std::byte>(100), .descriptors = {}},
                      deadline);
    } catch (const SystemError& failure) {
      error = failure.code().value();
    }
    EXPECT_EQ(error, ETIMEDOUT);
    EXPECT_GE(monotonic_ns(), deadline.at());
  }
}

}  // namespace
}  // namespace farcall::packets
