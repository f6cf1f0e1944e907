// SPDX-License-Identifier: Apache-2.0
//
// The memory in which bytes wait that are given back.
#include "preload/collected.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

namespace farcall::preload {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

TEST(Collected, HasTheRoomThatIsAskedForBehindWhatItHolds) {
  Collected all;
  ASSERT_TRUE(all.make_room(1));
  const std::size_t held = all.free_part().iov_len - 1;
  std::memset(all.data(), 'h', held);
  all.grow(held);
  for (const std::size_t least : {std::size_t{1}, kMegabyte + 2, 5 * kMegabyte}) {
    ASSERT_TRUE(all.make_room(least));
    EXPECT_GE(all.free_part().iov_len, least);
    EXPECT_EQ(all.free_part().iov_base, all.data() + held);
    EXPECT_EQ(all.data()[held - 1], std::byte{'h'});
  }
}

TEST(Collected, HoldsNoMoreThanIsWithinReason) {
  Collected all;
  ASSERT_TRUE(all.make_room(256 * kMegabyte));
  all.grow(1);
  EXPECT_FALSE(all.make_room(256 * kMegabyte));
  EXPECT_TRUE(all.make_room(256 * kMegabyte - 1)) << "what there is stays";
}

}  // namespace
}  // namespace farcall::preload
