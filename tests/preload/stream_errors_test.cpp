// SPDX-License-Identifier: Apache-2.0
//
// Errors of the kernel beside bytes of a ring, and what a receiver, or a sender, must not do.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "farcall/memory.hpp"
#include "preload/transfer.hpp"
#include "ring_stream.hpp"

namespace farcall::preload {
namespace {

// Over TCP, whose peer has reset it: the kernel tells so once.
struct ResetStream : Stream {
  ResetStream() {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), name, size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), name, &size), 0);
    in = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(in.get(), name, size), 0);
    out = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  void reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    EXPECT_EQ(::setsockopt(out.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now), 0);
    out.reset();
  }
};

TEST(StreamErrors, AResetBehindBytesOfTheRingIsLeftForTheNextCall) {
  ResetStream stream;
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send("ring"), 4);
  stream.receiver.watch(stream.ring);
  stream.reset();
  EXPECT_EQ(stream.receive(), "ring");
  EXPECT_EQ(stream.receive(), "(error " + std::to_string(ECONNRESET) + ")");
}

TEST(StreamErrors, ALookAtBytesOfTheRingLeavesTheResetBehindThem) {
  ResetStream stream;
  stream.receiver.unwatch(stream.ring);
  EXPECT_EQ(stream.send("ring"), 4);
  stream.sender.use_kernel(stream.ring);
  stream.receiver.watch(stream.ring);
  stream.reset();
  EXPECT_EQ(stream.receive(100, true), "ring");
  EXPECT_EQ(stream.receive(), "ring");
  EXPECT_EQ(stream.receive(), "(error " + std::to_string(ECONNRESET) + ")");
}

TEST(StreamErrors, WhoWatchesForEverDoesSo) {
  Stream stream;
  stream.receiver.watch_for_ever(stream.ring);
  stream.receiver.unwatch(stream.ring);
  EXPECT_TRUE(stream.receiver.watched());
  EXPECT_TRUE(Sender::closed(stream.ring));
}

TEST(StreamErrors, AThreadThatSleepsKeepsTheDirectionWatched) {
  Stream stream;
  stream.receiver.enter_kernel();
  stream.receiver.unwatch(stream.ring);
  EXPECT_TRUE(stream.receiver.watched());
  EXPECT_TRUE(Sender::closed(stream.ring));
  stream.receiver.leave_kernel(stream.ring, 0);
  stream.receiver.unwatch(stream.ring);
  EXPECT_FALSE(stream.receiver.watched());
}

// One more would write over a mark that the receiver has not come to.
TEST(StreamErrors, AMarkIsLeftForTheWayBackToTheKernel) {
  Stream stream;
  std::string all;
  for (std::uint64_t i = 0; i < 2 * kMarks; ++i) {
    stream.receiver.unwatch(stream.ring);
    EXPECT_EQ(stream.send("r"), 1);
    stream.receiver.watch(stream.ring);
    EXPECT_EQ(stream.send("k"), 1);
    all += "rk";
  }
  std::string got;
  while (got.size() < all.size()) {
    const std::string part = stream.receive();
    if (part[0] == '(') break;
    got += part;
  }
  EXPECT_EQ(got, all);
}

}  // namespace
}  // namespace farcall::preload
