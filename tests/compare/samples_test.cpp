// SPDX-License-Identifier: Apache-2.0
#include "compare/samples.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace farcall::compare {
namespace {

std::vector<float> numbers(int from, int count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), static_cast<float>(from));
  return values;
}

TEST(Samples, PercentilesAreSamplesByNearestRank) {
  Samples samples;
  samples.add_round(numbers(1, 1000));
  const Percentiles percentiles = samples.percentiles();
  EXPECT_EQ(percentiles.p50, 500);
  EXPECT_EQ(percentiles.p90, 900);
  EXPECT_EQ(percentiles.p99, 990);
  EXPECT_EQ(percentiles.p999, 999);
  EXPECT_EQ(percentiles.max, 1000);
  EXPECT_EQ(percentiles.mean, 500.5);
}

TEST(Samples, OfAllRoundsAreOnePopulation) {
  Samples samples;
  samples.add_round(numbers(901, 100));
  samples.add_round(numbers(1, 900));
  EXPECT_EQ(samples.count(), 1000U);
  EXPECT_EQ(samples.rounds(), 2U);
  EXPECT_EQ(samples.p50(), 500);
  EXPECT_EQ(samples.percentiles().max, 1000);
}

TEST(Samples, SpreadIsThatOfTheRoundsMedians) {
  Samples samples;
  samples.add_round(numbers(1, 9));
  samples.add_round(numbers(101, 9));
  samples.add_round(numbers(11, 9));
  EXPECT_EQ(samples.least_median(), 5);
  EXPECT_EQ(samples.greatest_median(), 105);
}

TEST(Samples, OneIsEveryPercentile) {
  Samples samples;
  samples.add_round(std::vector<float>{42});
  EXPECT_EQ(samples.percentiles().p50, 42);
  EXPECT_EQ(samples.percentiles().p999, 42);
}

TEST(Samples, NoneAreZero) {
  Samples samples;
  samples.add_round({});
  EXPECT_EQ(samples.count(), 0U);
  EXPECT_EQ(samples.percentiles().p50, 0);
  EXPECT_EQ(samples.least_median(), 0);
}

TEST(Median, OfTwoIsTheLower) { EXPECT_EQ(median({7, 3}), 3); }
TEST(Median, OfNoneIsZero) { EXPECT_EQ(median({}), 0); }

}  // namespace
}  // namespace farcall::compare
