// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "farcall/memory.hpp"

namespace farcall {
namespace {

using Way = CopyToPeer::Way;

// As if the next long copies had taken so many ticks for a KiB.
void tell(CopyToPeer& copier, Way way, std::uint64_t ticks_per_kib, int times = 2) {
  constexpr std::size_t kBytes = std::size_t{64} * 1024;
  for (int i = 0; i < times; ++i) copier.learn(way, ticks_per_kib * (kBytes / 1024), kBytes);
}

TEST(CopyToPeer, GoesThroughTheCachesUntilItKnowsBetter) {
  CopyToPeer copier;
  EXPECT_EQ(copier.way(), Way::through);
  tell(copier, Way::through, 1'000'000);
  EXPECT_EQ(copier.way(), Way::through) << "nothing is known of the other way";
}

TEST(CopyToPeer, TakesTheWayThatIsMuchFasterForTheWriter) {
  CopyToPeer copier;
  tell(copier, Way::through, 500);
  tell(copier, Way::past, 120);
  EXPECT_EQ(copier.way(), Way::past);
  // A reader that shares a cache would pay for what the writer saves here.
  tell(copier, Way::through, 150);
  EXPECT_EQ(copier.way(), Way::through);
  tell(copier, Way::past, 100);
  EXPECT_EQ(copier.way(), Way::through) << "not twice as fast";
}

TEST(CopyToPeer, OneInterruptedCopyChangesNothing) {
  CopyToPeer copier;
  tell(copier, Way::through, 150);
  tell(copier, Way::past, 120);
  tell(copier, Way::through, 100'000, 1);
  EXPECT_EQ(copier.way(), Way::through);
  tell(copier, Way::through, 150);
  tell(copier, Way::past, 100'000, 1);
  EXPECT_EQ(copier.way(), Way::through);
}

TEST(CopyToPeer, StaysBetweenTheTwoThresholds) {
  CopyToPeer copier;
  tell(copier, Way::past, 100);
  tell(copier, Way::through, 180);
  EXPECT_EQ(copier.way(), Way::through);
  tell(copier, Way::through, 220);
  EXPECT_EQ(copier.way(), Way::past);
  tell(copier, Way::through, 180);
  EXPECT_EQ(copier.way(), Way::past);
  tell(copier, Way::through, 140);
  EXPECT_EQ(copier.way(), Way::through);
}

TEST(CopyToPeer, ExtremeTimesAreNoneTheLess) {
  CopyToPeer copier;
  copier.learn(Way::through, 0, CopyToPeer::kLong);
  copier.learn(Way::through, UINT64_MAX / 2048, CopyToPeer::kLong);
  copier.learn(Way::past, UINT64_MAX / 2048, std::size_t{1} << 40);
  copier.learn(Way::past, 0, CopyToPeer::kLong);
  EXPECT_EQ(copier.way(), Way::through);
}

// Each byte arrives, and none beside them, however source and target lie: also where the target
// is a little behind the source, modulo 4096.
TEST(CopyMemory, CopiesEachByteWhereverTheTargetLies) {
  constexpr std::size_t kPage = 4096;
  std::vector<std::byte> memory(64 * kPage);
  std::mt19937 random(1);
  for (std::byte& byte : memory) byte = static_cast<std::byte>(random());
  std::byte* const from = memory.data();
  for (std::size_t behind = 0; behind <= 70; ++behind) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{2047}, std::size_t{2048}, std::size_t{2049},
          std::size_t{4095}, std::size_t{6145}, 8 * kPage + random() % kPage}) {
      std::byte* const to = from + 16 * kPage + behind;
      std::fill(to - 1, to + 10 * kPage, std::byte{0x5a});
      copy_memory(to, from, size);
      ASSERT_TRUE(std::equal(from, from + size, to)) << size << " bytes, " << behind << " behind";
      ASSERT_EQ(to[-1], std::byte{0x5a});
      ASSERT_EQ(to[size], std::byte{0x5a}) << size << " bytes, " << behind << " behind";
    }
  }
}

// The same for copies for a peer, which may go past the caches.
TEST(CopyToPeer, CopiesEachByteByBothWays) {
  constexpr std::size_t kRoom = 3 * CopyToPeer::kLong;
  std::vector<std::byte> from(kRoom);
  std::mt19937 random(1);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  for (const Way way : {Way::through, Way::past}) {
    CopyToPeer copier;
    for (int i = 0; i < 2000; ++i) {
      // Again and again, since it goes by what its copies take.
      tell(copier, Way::past, 100);
      tell(copier, Way::through, way == Way::past ? 1000 : 100);
      ASSERT_EQ(copier.way(), way);
      // Short ones too, and those about the bound.
      const std::size_t most = i % 2 == 0 ? 2 * CopyToPeer::kLong : 300;
      std::size_t size = random() % (most + 1);
      if (i % 5 == 0) size = CopyToPeer::kLong - 2 + random() % 4;
      const std::size_t source = random() % (kRoom - size);
      const std::size_t target = 1 + random() % (kRoom - size - 1);
      std::vector<std::byte> to(kRoom + 1, std::byte{0x5a});
      copier.copy(to.data() + target, from.data() + source, size);
      ASSERT_TRUE(std::equal(to.begin() + static_cast<std::ptrdiff_t>(target),
                             to.begin() + static_cast<std::ptrdiff_t>(target + size),
                             from.begin() + static_cast<std::ptrdiff_t>(source)))
          << size << " bytes from " << source << " to " << target;
      ASSERT_EQ(
          std::count(to.begin(), to.begin() + static_cast<std::ptrdiff_t>(target), std::byte{0x5a}),
          static_cast<std::ptrdiff_t>(target));
      ASSERT_TRUE(std::all_of(to.begin() + static_cast<std::ptrdiff_t>(target + size), to.end(),
                              [](std::byte byte) { return byte == std::byte{0x5a}; }));
    }
  }
}

}  // namespace
}  // namespace farcall
