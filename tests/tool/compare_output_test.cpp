// SPDX-License-Identifier: Apache-2.0
//
// What becomes of what farcall compare has measured, and what it says where there is nothing.
#include <gtest/gtest.h>
#include <sched.h>

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

constexpr const char* kShort = " compare --rows pipe --sizes 64 --placement one-cpu --budget 2 ";
// Its table is longer than a buffer of standard output.
constexpr const char* kLong =
    " compare --rows pipe --sizes 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18 --placement one-cpu "
    "--budget 1 ";

TEST(CompareOutput, TheReportIsThereWhereTheTableCannotBePrinted) {
  for (const char* nowhere : {">/dev/full", "| true", ">&-"}) {
    const ScratchDirectory directory;
    const std::string report = directory.file("report.json");
    output_of(FARCALL_COMMAND + std::string(kLong) + "--rounds 1 --json " + report + " 2>&1 " +
              nowhere);
    ASSERT_EQ(directory.files(), std::vector<std::string>{"report.json"}) << nowhere;
    EXPECT_EQ(read_json(report).at("rows").size(), 18U) << nowhere;
  }
}

TEST(CompareOutput, TheTableIsThereWhereTheReportCannotBeWritten) {
  const std::string said = output_of(FARCALL_COMMAND + std::string(kShort) +
                                     "--rounds 1 --json /dev/full 2>&1; echo $?");
  EXPECT_NE(said.find("one-cpu, 64 B"), std::string::npos) << said;
  EXPECT_NE(said.find("write /dev/full"), std::string::npos) << said;
  EXPECT_TRUE(said.ends_with("\n1\n")) << said;
}

void leave_one_processor() { compare::pin_to(compare::Processors().allowed().front()); }

Finished run_on_one_processor(const std::vector<std::string>& arguments) {
  return Command(arguments, leave_one_processor).wait();
}

TEST(CompareOutput, NothingMeasuredIsAFailureThatSaysWhy) {
  const Finished finished =
      run_on_one_processor({"compare", "--rows", "pipe", "--sizes", "64", "--placement", "two-cpus",
                            "--rounds", "1", "--budget", "2"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("nothing was measured: two-cpus: only processor"), std::string::npos)
      << finished.err;
}

TEST(CompareOutput, ARowThatIsRefusedWithoutAnotherIsAFailureToo) {
  const Finished finished = run_farcall({"compare", "--rows", "pipe", "--sizes", "0", "--placement",
                                         "one-cpu", "--rounds", "1", "--budget", "2"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_NE(finished.err.find("nothing was measured: pipe, one-cpu, 0 B: a stream of bytes"),
            std::string::npos)
      << finished.err;
}

TEST(CompareOutput, APlacementThatIsNotThereIsNamedForPeersThatDie) {
  const Finished finished = run_on_one_processor(
      {"compare", "--workload", "dead-peer", "--rows", "pipe", "--placement", "one-cpu,two-cpus"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("skipped: two-cpus: only processor"), std::string::npos)
      << finished.out;
}

TEST(CompareOutput, TellsTheVersionsOfPeersOrThatNobodyKnowsThem) {
  const Finished finished =
      run_farcall({"compare", "--rows", "null_call", "--sizes", "8", "--placement", "one-cpu",
                   "--rounds", "1", "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json libraries = Json::parse(finished.out).at("machine").at("libraries");
  EXPECT_TRUE(libraries.at("libc").is_string());
  for (const auto& [name, version] : libraries.items()) {
    EXPECT_TRUE(version.is_null() || version.is_string()) << name;
    EXPECT_NE(version, "") << name;
  }
  const std::set<std::string> known{"asio", "zeromq", "nng",   "onc_rpc",   "dbus",    "nats",
                                    "grpc", "ucx",    "capnp", "libfabric", "fastdds", "iceoryx2"};
  for (const auto& row : compare::all_rows().rows) {
    const std::string& name = row->info().mechanism;
    EXPECT_TRUE(!known.contains(name) || libraries.contains(name)) << name;
  }
}

// Those of further processes are unknown, which is not the same as none.
TEST(CompareOutput, HasNoSystemCallsOfRowsThatADaemonCarries) {
  const Finished finished =
      run_farcall({"compare", "--rows", "dbus,pipe", "--sizes", "64", "--placement", "one-cpu",
                   "--rounds", "1", "--budget", "2", "--json", "-"});
  ASSERT_EQ(finished.code, 0) << finished.err;
  const Json document = Json::parse(finished.out);
  for (const Json& row : document.at("rows")) {
    if (row.at("mechanism") != "dbus") continue;
    EXPECT_TRUE(row.at("syscalls_per_message").is_null()) << row;
    EXPECT_TRUE(row.contains("syscalls_note")) << row;
  }
}

}  // namespace
}  // namespace farcall::test
