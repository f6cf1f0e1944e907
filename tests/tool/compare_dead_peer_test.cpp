// SPDX-License-Identifier: Apache-2.0
//
// What `farcall compare --workload dead-peer` finds: who learns of a server's death, and who does
// not.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using Json = nlohmann::json;

Json measure(const std::string& rows) {
  const Finished finished =
      run_farcall({"compare", "--workload", "dead-peer", "--rows", rows, "--json", "-"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  return Json::parse(finished.out);
}

TEST(CompareDeadPeer, RingsCallsAndPipesAreToldHoweverTheyWait) {
  const Json report = measure("ring,call,pipe");
  EXPECT_EQ(report.at("settings").at("workload"), "dead-peer");
  std::size_t rows = 0;
  for (const Json& row : report.at("rows")) {
    EXPECT_EQ(row.at("outcome"), "told") << row;
    EXPECT_GT(row.at("told_ns"), 0) << row;
    EXPECT_FALSE(row.at("told").get<std::string>().empty()) << row;
    for (const char* const side : {"client", "server"})
      EXPECT_GE(row.at("idle_cpu_s_per_s").at(side), 0) << row;
    ++rows;
  }
  EXPECT_GE(rows, 7U);  // of rings and calls, each way of waiting
}

TEST(CompareDeadPeer, AFutexTellsOfNothing) {
  const Json report = measure("futex_pingpong");
  ASSERT_EQ(report.at("rows").size(), 1U);
  const Json& row = report.at("rows").front();
  EXPECT_EQ(row.at("outcome"), "waits") << row;
  EXPECT_TRUE(row.at("told_ns").is_null()) << row;
}

TEST(CompareDeadPeer, ItsTableSaysWhatWasToldAndWhoWaits) {
  const Finished finished =
      run_farcall({"compare", "--workload", "dead-peer", "--rows", "pipe,futex_pingpong"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("told after "), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("waits for more than "), std::string::npos) << finished.out;
}

TEST(CompareDeadPeer, HasNoRowsOfOneProcessAndNoPicture) {
  EXPECT_EQ(run_farcall({"compare", "--workload", "dead-peer", "--rows", "memcpy"}).code, 2);
  EXPECT_EQ(run_farcall({"compare", "--workload", "dead-peer", "--plot", "x.png"}).code, 2);
}

}  // namespace
}  // namespace farcall::test
