// SPDX-License-Identifier: Apache-2.0
//
// Many random programs (random/program.cpp, random/calls.cpp), as they are and with the library
// preloaded for both ends or for one. FARCALL_TEST_PROGRAMS says how many of each kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "counted_run.hpp"

namespace farcall::preload {
namespace {

unsigned long wanted_programs() {
  const char* const wanted = std::getenv("FARCALL_TEST_PROGRAMS");
  return wanted != nullptr ? std::strtoul(wanted, nullptr, 10) : 150;
}

// These showed a difference once.
constexpr std::array<unsigned long, 11> kTellingCalls{774,    1072,   2114,   6117,   90698, 203660,
                                                      205849, 400045, 400442, 400743, 400770};

class RandomPrograms : public ::testing::TestWithParam<const char*> {
 public:
  static Seen run(unsigned long seed, const std::map<std::string, std::string>& environment) {
    return run_counted({FARCALL_RANDOM_PROGRAM, GetParam(), std::to_string(seed)}, environment);
  }
  bool lost_nothing(const Seen& seen) {
    const bool early = WIFEXITED(seen.status) && WEXITSTATUS(seen.status) == 3;
    if (early) ++told_early;
    EXPECT_TRUE(early || seen.status == 0) << seen.status;
    return !HasFailure();
  }
  unsigned long told_early = 0;  // of the end, by the kernel, so it is rare
};

TEST_P(RandomPrograms, LoseNothing) {
  unsigned long accelerated = 0;
  const unsigned long count = wanted_programs();
  // Many end before memory is worth it, or leave at once: more are run until enough have not.
  const unsigned long enough = count / 50;
  for (unsigned long seed = 1; seed <= count || (accelerated <= enough && seed <= 4 * count);
       ++seed) {
    SCOPED_TRACE(std::string(GetParam()) + " " + std::to_string(seed));
    if (seed % 10 == 0) {
      ASSERT_TRUE(lost_nothing(run(seed, {}))) << "as it is";
    }
    std::map<std::string, std::string> environment{
        {"LD_PRELOAD", FARCALL_PRELOAD},
        {"FARCALL_TEST_UPGRADE_AFTER", std::to_string(1 + seed % 4)}};
    if (seed % 3 == 0) environment["FARCALL_RING_BYTES"] = "8K";
    if (seed % 5 < 2) environment["FARCALL_TEST_COMPETES"] = std::to_string(1 + seed % 5);
    if (seed % 8 == 3) environment["FARCALL_TEST_PLAIN"] = seed % 16 == 3 ? "c" : "s";
    const Seen seen = run(seed, environment);
    ASSERT_TRUE(lost_nothing(seen));
    if (seen.accelerated != 0 && seen.ring_bytes != 0) ++accelerated;
  }
  EXPECT_GT(accelerated, enough);
  EXPECT_LE(told_early, 1 + count / 1000);
}

class RandomCalls : public ::testing::TestWithParam<const char*> {
 public:
  // What one program says.
  std::string run(unsigned long seed, bool preloaded) {
    std::map<std::string, std::string> environment;
    if (preloaded)
      environment = {{"LD_PRELOAD", FARCALL_PRELOAD},
                     {"FARCALL_TEST_UPGRADE_AFTER", std::to_string(1 + seed % 3)},
                     {"FARCALL_TEST_COMPETES", std::to_string(seed % 5 < 3 ? seed % 5 : 0)}};
    const UniqueFd said(::memfd_create("said", MFD_CLOEXEC));
    const Seen seen = run_counted({FARCALL_RANDOM_CALLS, GetParam(), std::to_string(seed)},
                                  environment, said.get());
    EXPECT_EQ(seen.status, 0);
    if (seen.accelerated != 0) ++accelerated;
    std::string text(static_cast<std::size_t>(::lseek(said.get(), 0, SEEK_END)), '\0');
    EXPECT_EQ(::pread(said.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
    return text;
  }
  unsigned long accelerated = 0;
  // Up to the first difference.
  static std::string difference(const std::string& as_it_is, const std::string& with) {
    const std::size_t at = static_cast<std::size_t>(
        std::mismatch(as_it_is.begin(), as_it_is.end(), with.begin(), with.end()).first -
        as_it_is.begin());
    const std::size_t from = at < 800 ? 0 : at - 800;
    return as_it_is.substr(from, at + 40 - from) + "\nbut with the library\n" +
           with.substr(from, at + 40 - from);
  }
};

TEST_P(RandomCalls, ReturnTheSame) {
  const unsigned long count = wanted_programs();
  std::vector<unsigned long> seeds(kTellingCalls.begin(), kTellingCalls.end());
  seeds.resize(seeds.size() + count);
  std::iota(seeds.end() - static_cast<long>(count), seeds.end(), 1);
  for (const unsigned long seed : seeds) {
    const std::string as_it_is = run(seed, false);
    const std::string with = run(seed, true);
    ASSERT_TRUE(as_it_is == with) << GetParam() << " " << seed << ":\n"
                                  << difference(as_it_is, with);
  }
  EXPECT_GT(accelerated, count / 2);
}

const auto kKinds = ::testing::Values("tcp", "path", "pair", "packets", "packet-pair");
// Names of tests have no dashes.
const auto kName = [](const auto& tested) {
  const std::string name = tested.param;
  if (name == "udp-named") return std::string("udpNamed");
  return name == "packet-pair" ? "packetPair" : name;
};
INSTANTIATE_TEST_SUITE_P(Over, RandomCalls, kKinds, kName);
INSTANTIATE_TEST_SUITE_P(OverUdp, RandomCalls, ::testing::Values("udp", "udp-named"), kName);
INSTANTIATE_TEST_SUITE_P(Over, RandomPrograms, kKinds, kName);

}  // namespace
}  // namespace farcall::preload
