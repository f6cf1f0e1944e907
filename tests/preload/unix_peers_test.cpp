// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says of the socket at the other end of a unix socket, and what it says where
// there is none.
#include "preload/unix_peers.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "farcall/memory.hpp"

namespace farcall::preload {

namespace {

constexpr std::size_t kSides = 40;
std::array<Side, kSides> sides{};

// Each time another connection's.
Side& new_side(std::size_t index = 0) {
  sides[index].generation.fetch_add(1);
  return sides[index];
}

}  // namespace

std::uint32_t index_of(const Side& side) noexcept {
  return static_cast<std::uint32_t>(&side - sides.data());
}

namespace {

struct Ends {
  explicit Ends(int type = SOCK_STREAM) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, fds), 0);
    near.reset(fds[0]);
    far.reset(fds[1]);
  }
  UniqueFd near, far;
};

TEST(UnixPeers, HaveNotReadWhatTheKernelHasQueued) {
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const Ends ends(type);
    const Side& side = new_side();
    EXPECT_EQ(queued_at_unix_peer(ends.near.get(), side), 0);
    ASSERT_EQ(::send(ends.near.get(), "12345", 5, MSG_NOSIGNAL), 5);
    EXPECT_EQ(queued_at_unix_peer(ends.near.get(), side), 5);
    char bytes[5];
    ASSERT_EQ(::recv(ends.far.get(), bytes, sizeof bytes, 0), 5);
    EXPECT_EQ(queued_at_unix_peer(ends.near.get(), side), 0);
  }
}

// Known or not: nobody has read everything who is not there.
TEST(UnixPeers, ThatHaveClosedAreAnError) {
  for (const bool is_known : {false, true}) {
    Ends ends;
    const Side& side = new_side();
    if (is_known) {
      EXPECT_EQ(queued_at_unix_peer(ends.near.get(), side), 0);
    }
    ends.far.reset();
    EXPECT_EQ(queued_at_unix_peer(ends.near.get(), side), is_known ? -ENOENT : -ENOTCONN);
  }
}

TEST(UnixPeers, OfWhatIsNotConnectedAreAnError) {
  const UniqueFd alone(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(queued_at_unix_peer(alone.get(), new_side()), -ENOTCONN);
  EXPECT_EQ(queued_at_unix_peer(-1, new_side()), -ENOTSOCK);
}

// Who waits for that is told with all others, and not one by one: the first question is the last.
TEST(UnixPeers, OfManyAreToldTogether) {
  std::vector<Ends> all(kSides);
  for (std::size_t i = 0; i < kSides; ++i)
    EXPECT_EQ(await_unix_peer(all[i].near.get(), new_side(i)), number_of_socket(all[i].near.get()));
  for (std::size_t i = 0; i < kSides; ++i) {
    const std::uint32_t far = number_of_socket(all[i].far.get());
    if (i != 0) all[i].far.reset();
    std::uint32_t number = 0;
    EXPECT_EQ(number_of_unix_peer(all[i].near.get(), sides[i], number), 0) << i;
    EXPECT_EQ(number, far) << i;
  }
}

}  // namespace
}  // namespace farcall::preload
