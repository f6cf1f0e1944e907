// SPDX-License-Identifier: Apache-2.0
//
// What `farcall compare --workload scaling` writes, with so little effort that the figures
// themselves mean nothing.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "compare/row.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using Json = nlohmann::json;

std::vector<std::string> scaling(std::vector<std::string> arguments) {
  std::vector<std::string> all{"compare", "--workload", "scaling", "--rounds",
                               "1",       "--budget",   "4"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

// The shape that other programs rely on, and what has to hold among the figures.
void expect_sound(const Json& row) {
  ASSERT_FALSE(row.contains("error")) << row;
  EXPECT_EQ(row.at("placement"), "free") << row;
  EXPECT_EQ(row.at("rounds"), 1) << row;
  const auto calls = row.at("calls_of_clients").get<std::vector<std::uint64_t>>();
  ASSERT_EQ(calls.size(), row.at("clients")) << row;
  EXPECT_EQ(std::accumulate(calls.begin(), calls.end(), std::uint64_t{0}), row.at("calls")) << row;
  EXPECT_GE(*std::ranges::min_element(calls), 1U) << row;
  EXPECT_GE(row.at("samples"), row.at("clients")) << row;
  EXPECT_LE(row.at("samples"), row.at("calls")) << row;
  EXPECT_GT(row.at("calls_per_s"), 0) << row;
  EXPECT_LE(row.at("spread").at("calls_per_s_min"), row.at("spread").at("calls_per_s_max")) << row;
  const double fairness = row.at("fairness");
  EXPECT_GT(fairness, 0) << row;
  EXPECT_LE(fairness, 1) << row;
  EXPECT_NEAR(fairness,
              static_cast<double>(*std::ranges::min_element(calls)) /
                  static_cast<double>(*std::ranges::max_element(calls)),
              1e-4)
      << row;
  const Json& call = row.at("call_ns");
  EXPECT_GT(call.at("p50"), 0) << row;
  EXPECT_LE(call.at("p50"), call.at("p90")) << row;
  EXPECT_LE(call.at("p90"), call.at("p99")) << row;
  EXPECT_LE(call.at("p99"), call.at("p999")) << row;
  EXPECT_LE(call.at("p999"), call.at("max")) << row;
  EXPECT_GT(row.at("cpu_s_per_million"), 0) << row;
  EXPECT_GE(row.at("context_switches_per_call"), 0) << row;
}

TEST(CompareScaling, MeasuresEveryRowWithOneAndFourClientsAndWithPairs) {
  const Finished finished =
      run_farcall(scaling({"--clients", "1,4", "--pairs", "1,2", "--json", "-"}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("settings").at("workload"), "scaling");
  EXPECT_EQ(report.at("skipped"), Json::array());
  const compare::RowList list = compare::all_rows(compare::Workload::scaling);
  const std::vector<std::pair<unsigned, unsigned>> crowds{{1, 1}, {4, 1}, {2, 2}};
  EXPECT_EQ(report.at("rows").size(), list.rows.size() * crowds.size());
  for (const Json& row : report.at("rows")) expect_sound(row);
  for (const auto& row : list.rows)
    for (const auto& [clients, servers] : crowds)
      EXPECT_TRUE(std::ranges::any_of(report.at("rows"),
                                      [&](const Json& one) {
                                        return one.at("mechanism") == row->info().mechanism &&
                                               one.at("wait") == row->info().wait &&
                                               one.at("clients") == clients &&
                                               one.at("servers") == servers &&
                                               one.at("message_bytes") == 64;
                                      }))
          << row->info().mechanism << ", " << row->info().wait << ", " << clients;
  EXPECT_EQ(report.at("absent").size(), list.absent.size());
}

TEST(CompareScaling, CarriesMessagesThatComeInPieces) {
  const Finished finished = run_farcall(scaling(
      {"--clients", "3", "--rows", "tcp,unix_stream,pipe", "--sizes", "8,300K", "--json", "-"}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("rows").size(), 6U);
  for (const Json& row : report.at("rows")) expect_sound(row);
}

TEST(CompareScaling, TellsHowManyThereAre) {
  const Finished finished =
      run_farcall(scaling({"--clients", "2", "--pairs", "3", "--rows", "pipe"}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("2 clients, 1 server, 64 B\n"), std::string::npos) << finished.out;
  EXPECT_NE(finished.out.find("3 pairs, 64 B\n"), std::string::npos) << finished.out;
}

TEST(CompareScaling, SaysWhatIdleConnectionsCost) {
  const Finished finished = run_farcall(scaling({"--idle", "50", "--json", "-"}));
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_FALSE(report.at("rows").empty());
  for (const Json& row : report.at("rows")) {
    expect_sound(row);
    EXPECT_EQ(row.at("idle"), 50) << row;
    const Json& idle = row.at("idle_connections");
    for (const char* const side : {"server", "other_end"}) {
      EXPECT_TRUE(idle.at("bytes_each").contains(side)) << row;
      EXPECT_GE(idle.at("descriptors_each").at(side), 1) << row;
      EXPECT_GE(idle.at("cpu_s_per_s").at(side), 0) << row;
    }
  }
}

TEST(CompareScaling, SaysWhenThereAreTooFewDescriptorsForIdleConnections) {
  const std::string out =
      output_of("ulimit -n 400; " FARCALL_COMMAND
                " compare --workload scaling --rounds 1 --budget 4 --rows unix_stream --idle 200 "
                "2>&1; echo code $?");
  EXPECT_NE(out.find("a process may have 400 descriptors here, and this needs 456"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("code 1"), std::string::npos) << out;
}

TEST(CompareScaling, RefusesWhatHasNoMeaning) {
  for (const auto& [arguments, reason] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"compare", "--clients", "4"}, "--clients is for --workload scaling"},
           {{"compare", "--pairs", "4"}, "--pairs is for --workload scaling"},
           {{"compare", "--idle", "4"}, "--idle is for --workload scaling"},
           {scaling({"--readers", "4"}), "--readers is for --workload broadcast"},
           {scaling({"--clients", "0"}), "\"0\" is no number of clients; there are 1 to 64"},
           {scaling({"--clients", "65"}), "\"65\" is no number of clients; there are 1 to 64"},
           {scaling({"--pairs", "two"}), "\"two\" is no number of pairs; there are 1 to 64"},
           {scaling({"--sizes", "4"}), "8 bytes to 1M"},
           {scaling({"--placement", "one-cpu"}), "--placement free"},
           {scaling({"--idle", "10", "--clients", "4"}), "--idle has one client of its own"},
           {scaling({"--rows", "ring"}), "there is no row \"ring\""}}) {
    const Finished finished = run_farcall(arguments);
    EXPECT_EQ(finished.code, 2) << finished.out;
    EXPECT_NE(finished.err.find(reason), std::string::npos) << finished.err;
  }
}

TEST(CompareScaling, LeavesNoProcessWhenItIsStopped) {
  for (const int signal : {SIGINT, SIGKILL}) {
    Command command({"compare", "--workload", "scaling", "--clients", "8", "--rounds", "1000"});
    ASSERT_TRUE(command.has_children());
    command.kill(signal);
    EXPECT_EQ(command.wait().code, 128 + signal);
    EXPECT_FALSE(command.left_processes());
  }
}

}  // namespace
}  // namespace farcall::test
