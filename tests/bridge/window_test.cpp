// SPDX-License-Identifier: Apache-2.0
#include "bridge/window.hpp"

#include <gtest/gtest.h>

namespace farcall::bridge {
namespace {

using std::chrono::milliseconds;

struct BridgeWindow : testing::Test {
  // Pieces that come so long after each other; returns how many were under way at most.
  std::uint64_t carry(unsigned pieces, milliseconds apart) {
    std::uint64_t most = 0;
    for (unsigned i = 0; i < pieces; ++i) {
      EXPECT_TRUE(window.is_open()) << "the sender waits for ever";
      most = std::max(most, under_way);
      now += apart;
      --under_way;
      under_way += window.take(now);
      EXPECT_LE(under_way, kWindow);
    }
    return most;
  }

  Window window;
  Window::Clock::time_point now;
  std::uint64_t under_way = window.open(now);
};

TEST_F(BridgeWindow, BeginsWithLittle) {
  EXPECT_GE(under_way, 1U);
  EXPECT_LE(under_way, 2U);
  EXPECT_FALSE(Window().is_open()) << "nothing may come before it is asked for";
}

TEST_F(BridgeWindow, GrowsOnAFastLine) { EXPECT_EQ(carry(200, milliseconds(0)), kWindow); }

TEST_F(BridgeWindow, StaysSmallOnASlowLine) { EXPECT_LE(carry(200, milliseconds(600)), 2U); }

TEST_F(BridgeWindow, ShrinksWhereALineBecomesSlow) {
  carry(200, milliseconds(0));
  carry(200, milliseconds(600));
  EXPECT_LE(under_way, 2U);
}

TEST(BridgeTransfer, IsTooSlowWithoutAPieceInEachBound) {
  const std::chrono::seconds bound(2);
  EXPECT_FALSE(is_too_slow(2 * bound, 0, bound)) << "the first two are not counted";
  EXPECT_TRUE(is_too_slow(2 * bound + milliseconds(1), kPieceBytes - 1, bound));
  EXPECT_FALSE(is_too_slow(12 * bound, 10 * kPieceBytes, bound));
  EXPECT_TRUE(is_too_slow(12 * bound + milliseconds(1), 10 * kPieceBytes, bound));
}

// Who looks at all transfers takes the time before it comes to each.
TEST(BridgeTransfer, IsNotTooSlowThatHasBegunAfterTheLook) {
  const std::chrono::seconds bound(2);
  EXPECT_FALSE(is_too_slow(milliseconds(-1), 0, bound));
  EXPECT_FALSE(is_too_slow(milliseconds(-1), 10 * kPieceBytes, bound));
}

}  // namespace
}  // namespace farcall::bridge
