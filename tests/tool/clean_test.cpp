// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

// Others may clean at the same time, so only what holds always is expected.
TEST(Clean, RemovesWhatIsLeftAndThenFindsNothing) {
  const Finished first = run_farcall({"clean"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_FALSE(first.out.empty());
}

TEST(Clean, OnlyTellsWhatItWouldDo) {
  const Finished finished = run_farcall({"clean", "--dry-run"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(finished.out.find("removed"), std::string::npos) << finished.out;
}

TEST(Clean, RefusesUnknownOptions) { EXPECT_EQ(run_farcall({"clean", "--all"}).code, 2); }

}  // namespace
}  // namespace farcall::test
