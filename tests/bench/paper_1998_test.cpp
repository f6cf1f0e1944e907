// SPDX-License-Identifier: Apache-2.0
//
// The command that reproduces the figure of 1998, with so little effort that its figures mean
// nothing.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "bench/command.hpp"
#include "harness/scratch.hpp"

namespace farcall {
namespace {

using nlohmann::json;

CommandResult paper(const std::string& arguments) {
  return run_command(SCRIPTS "/paper_1998.sh " + arguments);
}

void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " is not in:\n" << text;
}

TEST(Paper1998, IsMeasuredDrawnAndSummedUp) {
  if (run_command("/usr/bin/python3 -c 'import matplotlib'").code != 0)
    GTEST_SKIP() << "python3-matplotlib is not installed";
  const test::ScratchDirectory scratch;
  const CommandResult result =
      paper("--tiny --rounds=1 --placement=one-cpu --farcall=" FARCALL_COMMAND " --out=" +
            scratch.file("out"));
  ASSERT_EQ(result.code, 0) << result.said;

  const json results = json::parse(file_contents(scratch.file("out/results.json")));
  std::set<std::string> mechanisms;
  std::set<std::size_t> sizes;
  for (const json& row : results["rows"]) {
    EXPECT_FALSE(row.contains("error")) << row;
    EXPECT_EQ(row["placement"], "one-cpu");
    EXPECT_EQ(row["rounds"], 1);
    mechanisms.insert(row["mechanism"]);
    sizes.insert(row["message_bytes"].get<std::size_t>());
  }
  EXPECT_EQ(sizes, (std::set<std::size_t>{1, 64, 65536}));
  EXPECT_TRUE(mechanisms.contains("door_call") != mechanisms.contains("call"));
  for (const char* name : {"pipe", "unix_stream", "sysv_mq", "posix_mq"})
    EXPECT_TRUE(mechanisms.contains(name)) << name;
  // Left out only where farcall was built without its library; then the summary says so.
  EXPECT_EQ(mechanisms.contains("onc_rpc"), results["absent"].empty());

  EXPECT_TRUE(file_contents(scratch.file("out/plot.png")).starts_with("\x89PNG"));
  const std::string summary = file_contents(scratch.file("out/summary.md"));
  for (const char* part :
       {"| mechanism | Sun, 1996 | Solaris 2.6 | here, one processor |",
        "| pipe | 175 (2.7 x) | 324 (2.7 x) |", "| 1 B |", "| 64 B |", "| 64 KiB |", "Spread, "})
    expect_has(summary, part);
  if (!results["absent"].empty()) expect_has(summary, "onc_rpc was not measured");
  expect_has(result.said, summary);
}

// What the script asks of a farcall that lists `rows`.
std::string asked_of_a_farcall_with(const std::string& rows, const std::string& arguments) {
  const test::ScratchDirectory scratch;
  const std::string farcall = scratch.file("farcall");
  std::ofstream(farcall) << "#!/bin/sh\nif [ \"$2\" = --list ]; then printf '" << rows
                         << "'; exit; fi\necho \"$@\" >&2\nexit 3\n";
  std::filesystem::permissions(farcall, std::filesystem::perms::owner_all);
  const CommandResult result =
      paper("--farcall=" + farcall + " --out=" + scratch.file("out") + " " + arguments);
  EXPECT_EQ(result.code, 3) << result.said;  // a failure of the command is its own
  return result.said;
}

TEST(Paper1998, MeasuresDoorsWhereThereAreDoors) {
  expect_has(asked_of_a_farcall_with("call shared x\\ndoor_call shared x\\n", ""),
             "--rows door_call,pipe,unix_stream,onc_rpc");
  expect_has(asked_of_a_farcall_with("call shared x\\n", ""), "--rows call,pipe");
  expect_has(asked_of_a_farcall_with("call shared x\\ndoor_call absent x\\n", ""),
             "--rows call,pipe");
}

TEST(Paper1998, HandsItsFlagsOn) {
  const std::string said =
      asked_of_a_farcall_with("call shared x\\n", "--quick --rounds=7 --placement=free --seed=5");
  expect_has(said, "--sizes 1,64,256,1K,4K,16K,64K,256K,1M,4M,16M --placement free");
  expect_has(said, "--quick --rounds 7 --seed 5\n");
}

TEST(Paper1998, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(paper("--fast").code, 2);
  const CommandResult result = paper("--farcall=/no/such/farcall");
  EXPECT_EQ(result.code, 2);
  expect_has(result.said, "leave --farcall away");
}

TEST(Paper1998, IsNotDrawnFromResultsWithAnError) {
  const test::ScratchDirectory scratch;
  std::ofstream(scratch.file("broken.json"))
      << R"({"rows": [{"mechanism": "pipe", "placement": "one-cpu", "message_bytes": 64,
             "error": "messages were lost"}]})";
  const CommandResult result =
      run_command(SCRIPTS "/plot_paper_1998.py " + scratch.file("broken.json"));
  EXPECT_NE(result.code, 0);
  expect_has(result.said, "pipe, one-cpu, 64 bytes: messages were lost");
}

}  // namespace
}  // namespace farcall
