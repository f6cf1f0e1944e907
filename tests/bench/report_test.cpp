// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "bench/command.hpp"

namespace farcall {
namespace {

CommandResult report(const std::string& arguments) {
  return run_command("/usr/bin/python3 " SCRIPTS "/bench_report.py " + arguments);
}

#define EXPECT_SAID(text) EXPECT_NE(page.said.find(text), std::string::npos) << page.said

class BenchReport : public testing::Test {
 protected:
  void SetUp() override {
    if (run_command("/usr/bin/python3 -c pass").code != 0) GTEST_SKIP() << "no /usr/bin/python3";
  }
};

TEST_F(BenchReport, NamesTheMachineAndEveryPlacement) {
  const CommandResult page = report(SAMPLES "/compare_sample.json --plot compare.png");
  ASSERT_EQ(page.code, 0);
  EXPECT_SAID("| kernel | 6.1.0 |");
  EXPECT_SAID("(compare.png)");
  EXPECT_SAID("## One processor");
  EXPECT_SAID("## Two processors");
}

TEST_F(BenchReport, PutsSizesAcrossAndWaysDown) {
  const CommandResult page = report(SAMPLES "/compare_sample.json");
  EXPECT_SAID("| mechanism | 64 B | 1 MiB |");
  EXPECT_SAID("| ring, spin | 0.36 | – |");
  EXPECT_SAID("| ring, block | 40.0 | – |");
  EXPECT_SAID("| unix_dgram | 45.0 | 900† |");
}

TEST_F(BenchReport, HoldsRowsAgainstTheControlsWithTheRangeOfBoth) {
  const CommandResult page = report(SAMPLES "/compare_sample.json");
  EXPECT_SAID("| ring, spin | 0.36 | 1.20 × (1.06 to 1.34) |");
}

TEST_F(BenchReport, TellsWhatFailedAndWhatWasLeftOut) {
  const CommandResult page = report(SAMPLES "/compare_sample.json");
  EXPECT_SAID("- tcp, 64 B, one-cpu: connect: ECONNREFUSED");
  EXPECT_SAID("- zeromq: libzmq was not there at build time");
  EXPECT_SAID("- udp, free, 1 MiB: longer than a datagram");
}

TEST_F(BenchReport, RefusesResultsWithoutRows) {
  const ScratchDirectory scratch;
  std::ofstream(scratch.file("empty.json")) << R"({"machine": {}, "rows": []})";
  EXPECT_NE(report(scratch.file("empty.json")).code, 0);
}

}  // namespace
}  // namespace farcall
