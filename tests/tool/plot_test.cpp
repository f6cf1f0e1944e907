// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

// What the arguments draw.
void expect_png(std::vector<std::string> arguments) {
  if (std::system("/usr/bin/python3 -c 'import matplotlib' 2>/dev/null") != 0)
    GTEST_SKIP() << "python3-matplotlib is not installed";
  const ScratchDirectory directory;
  arguments.insert(arguments.end(),
                   {"--rounds", "1", "--budget", "2", "--plot", directory.file("plot.png")});
  const Finished finished = run_farcall(arguments);
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(directory.files(), std::vector<std::string>{"plot.png"});
  std::ifstream file(directory.file("plot.png"), std::ios::binary);
  std::string start(8, '\0');
  file.read(start.data(), 8);
  EXPECT_EQ(start, "\x89PNG\r\n\x1a\n");
}

TEST(ComparePlot, IsAPng) {
  expect_png(
      {"compare", "--rows", "ring,pipe,controls", "--sizes", "64,1K", "--placement", "one-cpu"});
}

TEST(ComparePlot, OfABroadcastIsAPng) {
  expect_png(
      {"compare", "--workload", "broadcast", "--rows", "ring,broadcast,pipe", "--readers", "1,2"});
}

TEST(ComparePlot, OfManyClientsIsAPng) {
  expect_png({"compare", "--workload", "scaling", "--clients", "1,2", "--pairs", "2"});
}

}  // namespace
}  // namespace farcall::test
