// SPDX-License-Identifier: Apache-2.0
//
// What `farcall compare --workload broadcast` writes, with so little effort that the figures
// themselves mean nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compare/row.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using Json = nlohmann::json;

Finished run_broadcast(std::vector<std::string> arguments) {
  std::vector<std::string> all{"compare", "--workload", "broadcast", "--rounds",
                               "1",       "--budget",   "4"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return run_farcall(all);
}

// The shape that other programs rely on.
void expect_sound(const Json& row) {
  ASSERT_FALSE(row.contains("error")) << row;
  EXPECT_EQ(row.at("placement"), "free") << row;
  EXPECT_GE(row.at("samples"), 3) << row;
  EXPECT_EQ(row.at("rounds"), 1) << row;
  const Json& round = row.at("round_ns");
  EXPECT_GT(round.at("p50"), 0) << row;
  EXPECT_LE(round.at("p50"), round.at("p90")) << row;
  EXPECT_LE(round.at("p90"), round.at("p99")) << row;
  EXPECT_LE(round.at("p99"), round.at("p999")) << row;
  EXPECT_LE(round.at("p999"), round.at("max")) << row;
  EXPECT_GT(round.at("mean"), 0) << row;
  EXPECT_LE(row.at("spread").at("p50_min"), row.at("spread").at("p50_max")) << row;
  const Json& stream = row.at("stream");
  EXPECT_GT(stream.at("messages_per_s"), 0) << row;
  EXPECT_GT(stream.at("messages"), 1) << row;
  EXPECT_GT(stream.at("cpu_s_per_million"), 0) << row;
  EXPECT_LE(stream.at("spread").at("messages_per_s_min"),
            stream.at("spread").at("messages_per_s_max"))
      << row;
  EXPECT_GE(stream.at("missed"), 0) << row;
  EXPECT_LT(stream.at("missed"), 1) << row;
  EXPECT_TRUE(row.at("policy") != "block" || stream.at("missed") == 0) << row;
  EXPECT_GT(row.at("setup_us"), 0) << row;
  EXPECT_GT(row.at("cpu_s_per_million"), 0) << row;
  EXPECT_GE(row.at("context_switches_per_round"), 0) << row;
}

TEST(CompareBroadcast, MeasuresEveryRowWithEachNumberOfReaders) {
  const std::vector<unsigned> readers{1, 5};
  const Finished finished = run_broadcast({"--readers", "1,5", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("settings").at("workload"), "broadcast");
  const compare::RowList list = compare::all_rows(compare::Workload::broadcast);
  EXPECT_EQ(report.at("rows").size(), list.rows.size() * readers.size());
  for (const Json& row : report.at("rows")) expect_sound(row);
  for (const auto& row : list.rows) {
    const compare::RowInfo& info = row->info();
    for (const unsigned count : readers)
      EXPECT_TRUE(std::ranges::any_of(report.at("rows"),
                                      [&](const Json& one) {
                                        return one.at("mechanism") == info.mechanism &&
                                               one.at("wait") == info.wait &&
                                               one.at("policy") == info.policy &&
                                               one.at("readers") == count &&
                                               one.at("message_bytes") == 64;
                                      }))
          << info.mechanism << ", " << info.wait << ", " << count;
    EXPECT_NE(finished.err.find(info.mechanism), std::string::npos) << info.mechanism;
  }
  EXPECT_EQ(report.at("absent").size(), list.absent.size());
  for (const compare::AbsentRow& row : list.absent)
    EXPECT_NE(finished.err.find("absent: " + row.mechanism), std::string::npos);
}

TEST(CompareBroadcast, TellsHowTheMostReadersDoByBroadcastAndByPipes) {
  const Finished finished = run_broadcast({"--readers", "1,2", "--rows", "broadcast,pipe"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("1 writer, 1 reader, 64 B\n"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("To tell 2 readers 64 B and to hear from each takes"),
            std::string::npos)
      << finished.out;
}

TEST(CompareBroadcast, SkipsMessagesThatAreTooLongForABroadcast) {
  const Finished finished = run_broadcast(
      {"--readers", "1", "--rows", "broadcast,ring", "--sizes", "64,256K", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("rows").size(), 6U);
  EXPECT_EQ(report.at("skipped").size(), 2U);
}

TEST(CompareBroadcast, RefusesWhatIsOfTheOtherWorkload) {
  for (const auto& [arguments, reason] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"compare", "--readers", "4"}, "--readers is for --workload broadcast"},
           {{"compare", "--workload", "gossip"}, "there are: pair, broadcast, scaling"},
           {{"compare", "--workload", "broadcast", "--readers", "65"}, "there are 1 to 64"},
           {{"compare", "--workload", "broadcast", "--placement", "one-cpu"}, "--placement free"},
           {{"compare", "--workload", "broadcast", "--sizes", "4"}, "8 bytes to 1M"},
           {{"compare", "--workload", "broadcast", "--rows", "tcp"}, "there is no row \"tcp\""}}) {
    const Finished finished = run_farcall(arguments);
    EXPECT_EQ(finished.code, 2) << finished.out;
    EXPECT_NE(finished.err.find(reason), std::string::npos) << finished.err;
  }
}

TEST(CompareBroadcast, ListsItsRows) {
  const Finished finished = run_farcall({"compare", "--workload", "broadcast", "--list"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("broadcast_overwrite"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("a pipe for each reader"), std::string::npos) << finished.out;
}

}  // namespace
}  // namespace farcall::test
