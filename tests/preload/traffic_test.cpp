// SPDX-License-Identifier: Apache-2.0
//
// Runs a program that knows nothing of the library (traffic.cpp) with it, in all combinations of
// how programs wait, and sees from the library's counters that its bytes went both ways.
#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <vector>

#include "counted_run.hpp"

namespace farcall::preload {
namespace {

constexpr const char* kEngines[] = {"blocking", "poll", "select",  "level",
                                    "edge",     "spin", "counting"};
constexpr int kCount = std::size(kEngines);

Seen run(const std::string& client, const std::string& server, unsigned seed, std::uint64_t bytes,
         bool stopped = false) {
  std::vector<std::string> words{FARCALL_TRAFFIC, client, server, std::to_string(seed),
                                 std::to_string(bytes)};
  if (stopped) words.emplace_back("stopped");
  return run_counted(words, {{"LD_PRELOAD", FARCALL_PRELOAD},
                             {"FARCALL_TEST_UPGRADE_AFTER", std::to_string(1 + seed % 5)}});
}

class Traffic : public ::testing::TestWithParam<int> {};

TEST_P(Traffic, ArrivesAsItWasSent) {
  const std::string client = kEngines[GetParam() / kCount];
  const std::string server = kEngines[GetParam() % kCount];
  std::uint64_t accelerated = 0;
  std::uint64_t by_ring = 0;
  // Two that look without waiting are served by memory only while both are in their calls.
  const bool both_spin = client == "spin" && server == "spin";
  const bool needs_ring = client != "blocking" && server != "blocking" && !both_spin;
  // Those that write a megabyte at a time may be through before both ends have met, but not always.
  const auto seen_enough = [&] { return accelerated != 0 && (by_ring != 0 || !needs_ring); };
  for (unsigned seed = 1; seed <= 6 || (!seen_enough() && seed <= 1000); ++seed) {
    const std::uint64_t bytes = 1000 + seed * 2'345'678 % 9'000'000;
    const Seen seen = run(client, server, seed, bytes);
    ASSERT_EQ(seen.status, 0) << client << " with " << server << ", seed " << seed;
    EXPECT_EQ(seen.ring_bytes + seen.kernel_bytes, 4 * bytes) << "seed " << seed;
    accelerated += seen.accelerated;
    by_ring += seen.ring_bytes;
  }
  EXPECT_TRUE(seen_enough()) << accelerated << " connections, " << by_ring << " bytes";
}

// At any moment, and for as long as it takes: the other end waits, and nothing is lost.
TEST_P(Traffic, ArrivesThoughBothEndsAreStoppedAndContinued) {
  const std::string client = kEngines[GetParam() / kCount];
  const std::string server = kEngines[GetParam() % kCount];
  std::uint64_t accelerated = 0;
  for (unsigned seed = 11; seed <= 12 || (accelerated == 0 && seed < 600); ++seed) {
    const Seen seen = run(client, server, seed, 1'000'000 + seed * 134'567, true);
    ASSERT_EQ(seen.status, 0) << client << " with " << server << ", seed " << seed;
    accelerated += seen.accelerated;
  }
  EXPECT_GT(accelerated, 0U);
}

INSTANTIATE_TEST_SUITE_P(Engines, Traffic, ::testing::Range(0, kCount* kCount),
                         [](const auto& tested) {
                           return std::string(kEngines[tested.param / kCount]) + "_" +
                                  kEngines[tested.param % kCount];
                         });

}  // namespace
}  // namespace farcall::preload
