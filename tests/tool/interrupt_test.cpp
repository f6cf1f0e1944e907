// SPDX-License-Identifier: Apache-2.0
//
// A comparison that is stopped leaves neither processes nor files.
#include <gtest/gtest.h>
#include <signal.h>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

std::vector<std::string> long_comparison(const std::string& report) {
  return {"compare", "--rows",   "ring,pipe,posix_mq,boost_mq",
          "--sizes", "64",       "--placement",
          "one-cpu", "--rounds", "1000",
          "--json",  report};
}

class StoppedBy : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, StoppedBy, testing::Values(SIGINT, SIGTERM, SIGHUP),
                         testing::PrintToStringParamName());

TEST_P(StoppedBy, ASignalTheComparisonLeavesNoProcess) {
  const ScratchDirectory directory;
  Command command(long_comparison(directory.file("report.json")));
  ASSERT_TRUE(command.has_children());
  command.kill(GetParam());
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 128 + GetParam()) << finished.err;
  EXPECT_FALSE(command.left_processes());
  EXPECT_TRUE(directory.files().empty());
}

TEST(StoppedByKill, TheComparisonLeavesNoProcess) {
  const ScratchDirectory directory;
  Command command(long_comparison(directory.file("report.json")));
  ASSERT_TRUE(command.has_children());
  command.kill(SIGKILL);
  command.wait();
  EXPECT_FALSE(command.left_processes());
}

}  // namespace
}  // namespace farcall::test
