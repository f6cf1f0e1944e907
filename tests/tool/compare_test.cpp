// SPDX-License-Identifier: Apache-2.0
//
// What `farcall compare` writes, with so little effort that the figures themselves mean nothing.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "compare/placement.hpp"
#include "compare/row.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

using Json = nlohmann::json;

Json read_json(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

// The placements that this machine has and that differ for the mechanisms.
std::vector<std::string> placements() {
  if (compare::Processors().allowed().size() > 1) return {"two-cpus", "one-cpu"};
  return {"one-cpu"};
}

// Sanitizers make it several times slower.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
const std::vector<std::size_t> kSizes{20'000};
#else
const std::vector<std::size_t> kSizes{64, 20'000};
#endif

std::string joined(const std::vector<std::size_t>& sizes) {
  std::string text;
  for (const std::size_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}
std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

void expect_positive(const Json& object, const char* key) {
  ASSERT_TRUE(object.contains(key)) << key << " in " << object;
  ASSERT_TRUE(object[key].is_number()) << key << " in " << object;
  EXPECT_GT(object[key].get<double>(), 0) << key << " in " << object;
}

// The shape that other programs rely on.
void expect_sound(const Json& row) {
  ASSERT_FALSE(row.contains("error")) << row;
  EXPECT_TRUE(
      (std::set<std::string>{"control", "linux", "shared", "library"}.contains(row.at("engine"))))
      << row;
  EXPECT_TRUE((std::set<std::string>{"spin", "adaptive", "block"}.contains(row.at("wait")))) << row;
  expect_positive(row, "message_bytes");
  expect_positive(row, "samples");
  expect_positive(row, "setup_us");
  EXPECT_TRUE(row.at("depth").is_number_unsigned()) << row;
  EXPECT_TRUE(row.at("fragmented").is_boolean()) << row;
  const Json& rtt = row.at("rtt_ns");
  for (const char* figure : {"mean", "p50", "p90", "p99", "p999", "max"})
    expect_positive(rtt, figure);
  EXPECT_LE(rtt["p50"], rtt["p90"]) << row;
  EXPECT_LE(rtt["p90"], rtt["p99"]) << row;
  EXPECT_LE(rtt["p99"], rtt["p999"]) << row;
  EXPECT_LE(rtt["p999"], rtt["max"]) << row;
  EXPECT_LE(rtt["mean"], rtt["max"]) << row;
  EXPECT_LE(row.at("spread").at("p50_min"), row["spread"].at("p50_max")) << row;
  expect_positive(row.at("throughput"), "messages_per_s");
  expect_positive(row.at("throughput"), "bytes_per_s");
  expect_positive(row, "cpu_s_per_million");
  EXPECT_GE(row.at("context_switches_per_message"), 0) << row;
  EXPECT_TRUE(row.at("syscalls_per_message").is_number() || row.contains("syscalls_note")) << row;
}

const Json* find(const Json& report, const std::string& mechanism, const std::string& wait,
                 const std::string& placement, std::size_t bytes) {
  for (const Json& row : report.at("rows"))
    if (row.at("mechanism") == mechanism && row.at("wait") == wait &&
        row.at("placement") == placement && row.at("message_bytes") == bytes)
      return &row;
  return nullptr;
}

TEST(Compare, MeasuresEveryRowAtEverySizeInEveryPlacement) {
  const ScratchDirectory directory;
  const Finished finished = run_farcall({"compare", "--rows", "all", "--sizes", joined(kSizes),
                                         "--placement", joined(placements()), "--rounds", "1",
                                         "--budget", "4", "--json", directory.file("report.json")});
  ASSERT_EQ(finished.code, 0) << finished.out << finished.err;
  const Json report = read_json(directory.file("report.json"));
  for (const Json& row : report.at("rows")) expect_sound(row);
  const compare::RowList list = compare::all_rows();
  for (const auto& row : list.rows) {
    const compare::RowInfo& info = row->info();
    for (const std::string& placement : placements()) {
      const auto sizes =
          info.fixed_bytes != 0 ? std::vector<std::size_t>{info.fixed_bytes} : kSizes;
      for (const std::size_t size : sizes) {
        // Some rows have messages of no bytes only.
        // What is preloaded, and the bridge, lie beside the tool, where this program does not look.
        const bool refused =
            !info.preloaded && info.mechanism != "bridge" &&
            !row->refuses({.message_bytes = size, .depth_bytes = 0, .name = {}}).empty();
        EXPECT_EQ(find(report, info.mechanism, info.wait, placement, size) == nullptr, refused)
            << info.mechanism << ", " << info.wait << ", " << placement << ", " << size;
      }
    }
    EXPECT_NE(finished.out.find(info.mechanism), std::string::npos) << info.mechanism;
  }
  EXPECT_EQ(report.at("absent").size(), list.absent.size());
  for (const compare::AbsentRow& row : list.absent)
    EXPECT_NE(finished.out.find("absent: " + row.mechanism), std::string::npos);
}

TEST(Compare, LeavesThePlacementToTheSchedulerWhereAsked) {
  const Finished finished =
      run_farcall({"compare", "--rows", "ring,cacheline_pingpong", "--sizes", "64", "--placement",
                   "free", "--budget", "4", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("rows").size(), 4U);
  for (const Json& row : report.at("rows")) {
    expect_sound(row);
    EXPECT_EQ(row.at("placement"), "free");
  }
}

TEST(Compare, RecordsTheMachine) {
  const ScratchDirectory directory;
  const Finished finished =
      run_farcall({"compare", "--rows", "null_call", "--sizes", "8", "--placement", "one-cpu",
                   "--budget", "2", "--json", directory.file("report.json")});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json machine = read_json(directory.file("report.json")).at("machine");
  for (const char* key : {"cpu", "kernel", "virtualization", "governor", "clock_source", "time",
                          "farcall", "build_type", "compiler"})
    EXPECT_FALSE(machine.at(key).get<std::string>().empty()) << key;
  expect_positive(machine, "processors");
  expect_positive(machine, "page_bytes");
  expect_positive(machine, "timer_ns");
  EXPECT_TRUE(machine.at("mitigations").is_object());
  EXPECT_NE(machine.at("command").get<std::string>().find(
                " compare --rows null_call --sizes 8 --placement one-cpu --budget 2 --json "),
            std::string::npos);
}

TEST(Compare, WritesJsonToStdoutAndTheTableElsewhere) {
  const Finished finished = run_farcall({"compare", "--rows", "pipe", "--sizes", "64",
                                         "--placement", "one-cpu", "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("rows").size(), 1U);
  EXPECT_NE(finished.err.find("one-cpu, 64 B"), std::string::npos) << finished.err;
}

TEST(Compare, MarksMessagesThatTravelInSeveralPieces) {
  const Finished finished =
      run_farcall({"compare", "--rows", "posix_mq", "--sizes", "64,1M", "--placement", "one-cpu",
                   "--rounds", "1", "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  ASSERT_EQ(report.at("rows").size(), 2U);
  EXPECT_EQ(find(report, "posix_mq", "block", "one-cpu", 64)->at("fragmented"), false);
  EXPECT_EQ(find(report, "posix_mq", "block", "one-cpu", 1 << 20)->at("fragmented"), true);
}

// Where a message of 0 bytes is none, the row says so; everything else goes down to one byte.
TEST(Compare, MeasuresMessagesTooShortForASequenceNumber) {
  const Finished finished =
      run_farcall({"compare", "--rows", "all", "--wait", "adaptive", "--sizes", "0,1,7",
                   "--placement", "one-cpu", "--rounds", "1", "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  for (const Json& row : report.at("rows")) ASSERT_FALSE(row.contains("error")) << row;
  for (const char* name : {"call", "ring"}) {
    EXPECT_NE(find(report, name, "adaptive", "one-cpu", 0), nullptr) << name;
    EXPECT_NE(find(report, name, "adaptive", "one-cpu", 1), nullptr) << name;
  }
  for (const char* name : {"unix_seqpacket", "unix_dgram", "posix_mq", "eventfd"})
    EXPECT_NE(find(report, name, "block", "one-cpu", 0), nullptr) << name;
  for (const char* name : {"pipe", "unix_stream", "tcp"}) {
    EXPECT_EQ(find(report, name, "block", "one-cpu", 0), nullptr) << name;
    EXPECT_NE(find(report, name, "block", "one-cpu", 1), nullptr) << name;
    EXPECT_NE(finished.err.find(std::string("skipped: ") + name + ", one-cpu, 0 B: a stream"),
              std::string::npos)
        << finished.err;
  }
}

// A call in records of many fragments, and in one that is almost only its header.
TEST(Compare, CallsAndStreamsGoThereAndBackFromOneByteTo16MiB) {
  const Finished finished =
      run_farcall({"compare", "--rows", "onc_rpc,call,pipe,unix_stream", "--wait", "adaptive",
                   "--sizes", "1,255K,256K,16M", "--placement", "one-cpu", "--rounds", "1",
                   "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  for (const std::size_t size : {1UL, 255UL << 10, 256UL << 10, 16UL << 20}) {
    const bool present = report.at("absent").empty();
    EXPECT_EQ(find(report, "onc_rpc", "block", "one-cpu", size) != nullptr, present) << size;
    EXPECT_NE(find(report, "call", "adaptive", "one-cpu", size), nullptr) << size;
    EXPECT_NE(find(report, "pipe", "block", "one-cpu", size), nullptr) << size;
    EXPECT_NE(find(report, "unix_stream", "block", "one-cpu", size), nullptr) << size;
  }
}

// Those that others would choose, among them what is loaded only when it is measured; and a pipe,
// which is there where they are not.
TEST(Compare, LibrariesTakeMessagesFromNoneTo16MiB) {
  const std::set<std::string> names{"grpc",    "grpc_stream", "capnp",     "ucx", "libfabric",
                                    "fastdds", "asio",        "asio_sync", "pipe"};
  const Finished finished = run_farcall(
      {"compare", "--rows", joined(std::vector<std::string>(names.begin(), names.end())), "--wait",
       "block", "--sizes", "0,1,256K,16M", "--placement", "one-cpu", "--rounds", "1", "--budget",
       "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  for (const Json& row : report.at("rows")) EXPECT_FALSE(row.contains("error")) << row;
  const compare::RowList list = compare::all_rows();
  std::size_t measured = 0;
  for (const auto& row : list.rows) {
    const compare::RowInfo& info = row->info();
    if (!names.contains(info.mechanism) || (info.waits && info.wait != "block")) continue;
    for (const std::size_t size : {0UL, 1UL, 256UL << 10, 16UL << 20}) {
      const bool refused =
          !row->refuses({.message_bytes = size, .depth_bytes = 0, .name = {}}).empty();
      EXPECT_EQ(find(report, info.mechanism, info.wait, "one-cpu", size) == nullptr, refused)
          << info.mechanism << ", " << size;
      measured += refused ? 0 : 1;
    }
  }
  EXPECT_EQ(report.at("rows").size(), measured);
}

TEST(Compare, CountsSystemCallsExactly) {
  const Finished finished =
      run_farcall({"compare", "--rows", "pipe,memcpy", "--sizes", "64", "--placement", "one-cpu",
                   "--rounds", "1", "--budget", "20", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  const Json& pipe = *find(report, "pipe", "block", "one-cpu", 64);
  if (pipe.at("syscalls_per_message").is_null()) GTEST_SKIP() << pipe.at("syscalls_note");
  // A write and a read.
  EXPECT_NEAR(pipe.at("syscalls_per_message").get<double>(), 2, 0.2);
  EXPECT_EQ(find(report, "memcpy", "spin", "one-cpu", 64)->at("syscalls_per_message"), 0);
}

TEST(Compare, ChoosesAmongWaysOfWaiting) {
  const Finished finished =
      run_farcall({"compare", "--rows", "ring,pipe", "--wait", "spin", "--sizes", "64",
                   "--placement", "one-cpu", "--rounds", "1", "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json report = Json::parse(finished.out);
  EXPECT_EQ(report.at("rows").size(), 2U);
  EXPECT_NE(find(report, "ring", "spin", "one-cpu", 64), nullptr);
  EXPECT_NE(find(report, "pipe", "block", "one-cpu", 64), nullptr);
}

}  // namespace
}  // namespace farcall::test
