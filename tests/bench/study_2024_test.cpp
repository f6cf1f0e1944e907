// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "bench/command.hpp"
#include "farcall/channel/mechanism.hpp"
#include "harness/scratch.hpp"

namespace farcall {
namespace {

using nlohmann::json;

constexpr const char* kTiny =
    " --benchmark_min_warmup_time=0 --benchmark_min_time=0.001 --benchmark_repetitions=2";

// The study as short as it can be; `filter` is a regular expression on names.
CommandResult run_study(const test::ScratchDirectory& scratch, const std::string& filter) {
  return run_command(
      std::string(STUDY_PROGRAM) + kTiny + " '--benchmark_filter=" + filter +
      "' --benchmark_out_format=json --benchmark_out=" + scratch.file("results.json"));
}

std::set<std::string> measured(const json& results) {
  std::set<std::string> names;
  for (const json& run : results["benchmarks"])
    if (run["run_type"] == "iteration") names.insert(run["run_name"]);
  return names;
}

TEST(Study2024, MeasuresEveryMechanismAtEverySizeWithoutAnError) {
  const test::ScratchDirectory scratch;
  const CommandResult result = run_study(scratch, ".");
  ASSERT_EQ(result.code, 0) << result.said;
  const json results = json::parse(file_contents(scratch.file("results.json")));
  for (const json& run : results["benchmarks"])
    EXPECT_FALSE(run.contains("error_occurred")) << run.dump();

  std::set<std::string> expected{"floor/fork/real_time"};
  for (const std::string name : {"pipe", "fifo", "unix_stream", "unix_dgram", "posix_mq", "sysv_mq",
                                 "anonymous_mapping", "file_mapping", "posix_shm"}) {
    expected.insert("floor/" + name + "/real_time");
    for (int size = 16; size <= 8192; size *= 2)
      expected.insert("study/" + name + "/" + std::to_string(size) + "/real_time");
  }
  for (const channel::AnyMechanism& mechanism : channel::all_mechanisms()) {
    const std::string name(mechanism.properties().name);
    if (expected.contains("floor/" + name + "/real_time")) continue;
    expected.insert("floor/" + name + "/real_time");
    for (int size = 16; size <= 8192; size *= 2)
      expected.insert("addition/" + name + "/" + std::to_string(size) + "/real_time");
  }
  EXPECT_EQ(measured(results), expected);
}

TEST(Study2024, RecordsTheMachine) {
  const test::ScratchDirectory scratch;
  const CommandResult result = run_study(scratch, "^floor/fork");
  ASSERT_EQ(result.code, 0) << result.said;
  const json results = json::parse(file_contents(scratch.file("results.json")));
  for (const char* field :
       {"kernel", "processor", "governor", "turbo_off", "address_randomisation", "build"})
    EXPECT_TRUE(results["context"].contains(field)) << field;
}

TEST(Study2024, RefusesAFlagThatItDoesNotKnow) {
  EXPECT_EQ(run_command(std::string(STUDY_PROGRAM) + " --no-such-flag").code, 2);
}

TEST(Study2024, IsDrawnAndSummedUp) {
  const CommandResult python = run_command("/usr/bin/python3 -c 'import pandas, matplotlib'");
  if (python.code != 0) GTEST_SKIP() << "pandas or matplotlib is not installed";
  const test::ScratchDirectory scratch;
  const CommandResult study = run_study(scratch, "/(pipe|ring|file_mapping|fork)(/(64|4096))?/r");
  ASSERT_EQ(study.code, 0) << study.said;

  const CommandResult drawn =
      run_command(SCRIPTS "/plot_study_2024.py " + scratch.file("results.json") + " --plot " +
                  scratch.file("plot.png") + " --summary " + scratch.file("summary.md"));
  ASSERT_EQ(drawn.code, 0) << drawn.said;
  EXPECT_TRUE(file_contents(scratch.file("plot.png")).starts_with("\x89PNG"));
  const std::string summary = file_contents(scratch.file("summary.md"));
  EXPECT_NE(summary.find("| mechanism | 64 | 4096 |"), std::string::npos) << summary;
  for (const char* name : {"| pipe |", "| file_mapping |", "| ring |", "| fork |"})
    EXPECT_NE(summary.find(name), std::string::npos) << name << "\n" << summary;
}

TEST(Study2024, IsNotDrawnFromResultsWithAnError) {
  const CommandResult python = run_command("/usr/bin/python3 -c 'import pandas'");
  if (python.code != 0) GTEST_SKIP() << "pandas is not installed";
  const test::ScratchDirectory scratch;
  std::ofstream(scratch.file("broken.json"))
      << R"({"context": {}, "benchmarks": [{"name": "study/pipe/16", "run_type": "iteration",
             "error_occurred": true, "error_message": "messages were lost"}]})";
  const CommandResult result =
      run_command(SCRIPTS "/plot_study_2024.py " + scratch.file("broken.json"));
  EXPECT_NE(result.code, 0);
  EXPECT_NE(result.said.find("messages were lost"), std::string::npos) << result.said;
}

}  // namespace
}  // namespace farcall
