// SPDX-License-Identifier: Apache-2.0
//
// Many random programs (random/program.cpp), as they are and with the library preloaded for both
// ends or for one. FARCALL_TEST_PROGRAMS says how many of each kind.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "counted_run.hpp"

namespace farcall::preload {
namespace {

unsigned long wanted_programs() {
  const char* const wanted = std::getenv("FARCALL_TEST_PROGRAMS");
  return wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 150;
}

class RandomPrograms : public ::testing::TestWithParam<const char*> {
 public:
  static Seen run(unsigned long seed, const std::map<std::string, std::string>& environment) {
    return run_counted({FARCALL_RANDOM_PROGRAM, GetParam(), std::to_string(seed)}, environment);
  }
};

TEST_P(RandomPrograms, LoseNothing) {
  unsigned long accelerated = 0;
  const unsigned long count = wanted_programs();
  for (unsigned long seed = 1; seed <= count; ++seed) {
    SCOPED_TRACE(std::string(GetParam()) + " " + std::to_string(seed));
    if (seed % 10 == 0) {
      ASSERT_EQ(run(seed, {}).status, 0) << "as it is";
    }
    std::map<std::string, std::string> environment{
        {"LD_PRELOAD", FARCALL_PRELOAD},
        {"FARCALL_TEST_UPGRADE_AFTER", std::to_string(1 + seed % 4)}};
    if (seed % 3 == 0) environment["FARCALL_RING_BYTES"] = "8K";
    if (seed % 8 == 3) environment["FARCALL_TEST_PLAIN"] = seed % 16 == 3 ? "c" : "s";
    const Seen seen = run(seed, environment);
    ASSERT_EQ(seen.status, 0);
    if (seen.accelerated != 0 && seen.ring_bytes != 0) ++accelerated;
  }
  EXPECT_GT(accelerated, count / 10);
}

INSTANTIATE_TEST_SUITE_P(Over, RandomPrograms, ::testing::Values("tcp", "path", "pair"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace farcall::preload
