// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

TEST(ComparePlot, IsAPng) {
  if (std::system("/usr/bin/python3 -c 'import matplotlib' 2>/dev/null") != 0)
    GTEST_SKIP() << "python3-matplotlib is not installed";
  const ScratchDirectory directory;
  const Finished finished = run_farcall({"compare", "--rows", "ring,pipe,controls", "--sizes",
                                         "64,1K", "--placement", "one-cpu", "--rounds", "1",
                                         "--budget", "2", "--plot", directory.file("plot.png")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(directory.files(), std::vector<std::string>{"plot.png"});
  std::ifstream file(directory.file("plot.png"), std::ios::binary);
  std::string start(8, '\0');
  file.read(start.data(), 8);
  EXPECT_EQ(start, "\x89PNG\r\n\x1a\n");
}

}  // namespace
}  // namespace farcall::test
