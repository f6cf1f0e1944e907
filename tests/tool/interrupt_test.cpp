// SPDX-License-Identifier: Apache-2.0
//
// A comparison that is stopped leaves neither processes nor files.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "compare/row.hpp"
#include "tool/run_command.hpp"

namespace farcall::test {
namespace {

std::vector<std::string> long_comparison(const std::string& report,
                                         const std::string& rows = "ring,pipe,posix_mq,boost_mq") {
  return {"compare", "--rows",   rows,   "--sizes", "64",  "--placement",
          "one-cpu", "--rounds", "1000", "--json",  report};
}

class StoppedBy : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Signals, StoppedBy, testing::Values(SIGINT, SIGTERM, SIGHUP),
                         testing::PrintToStringParamName());

TEST_P(StoppedBy, ASignalTheComparisonLeavesNoProcess) {
  const ScratchDirectory directory;
  Command command(long_comparison(directory.file("report.json")));
  ASSERT_TRUE(command.has_children());
  command.kill(GetParam());
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 128 + GetParam()) << finished.err;
  EXPECT_FALSE(command.left_processes());
  EXPECT_TRUE(directory.files().empty());
}

TEST(StoppedByKill, TheComparisonLeavesNoProcess) {
  const ScratchDirectory directory;
  Command command(long_comparison(directory.file("report.json")));
  ASSERT_TRUE(command.has_children());
  command.kill(SIGKILL);
  command.wait();
  EXPECT_FALSE(command.left_processes());
}

// As under nohup(1).
TEST(StoppedByNothing, AComparisonThatWasStartedToIgnoreASignalGoesOn) {
  Command command({"compare", "--rows", "pipe", "--sizes", "64", "--placement", "one-cpu",
                   "--rounds", "3", "--budget", "200"},
                  [] { ::signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(command.has_children());
  command.kill(SIGHUP);
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_NE(finished.out.find("pipe"), std::string::npos);
}

// A server that is started for a row writes into a folder; nobody who is killed can remove that.
class RowsOfNats : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/usr/sbin/nats-server", X_OK) != 0) GTEST_SKIP() << "there is no nats-server";
    const auto named = [](const auto& row) { return row->info().mechanism == "nats"; };
    if (std::ranges::none_of(compare::all_rows().rows, named))
      GTEST_SKIP() << "farcall was built without libnats";
    ::setenv("TMPDIR", directory_.file("").c_str(), 1);
  }
  void TearDown() override { ::unsetenv("TMPDIR"); }
  // Once the server has one.
  [[nodiscard]] bool have_a_folder() const {
    return eventually([&] { return !directory_.files().empty(); });
  }
  // Who outlives the tool may still be removing it.
  [[nodiscard]] std::vector<std::string> left_files() const {
    eventually([&] { return directory_.files().empty(); });
    return directory_.files();
  }
  const ScratchDirectory directory_;
  const ScratchDirectory elsewhere_;
};

TEST_F(RowsOfNats, LeaveNeitherProcessNorFileWhenStopped) {
  Command command(long_comparison(elsewhere_.file("report.json"), "nats"));
  ASSERT_TRUE(have_a_folder());
  command.kill(SIGINT);
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 128 + SIGINT) << finished.err;
  EXPECT_EQ(directory_.files(), std::vector<std::string>{});
  EXPECT_FALSE(command.left_processes());
}

TEST_F(RowsOfNats, LeaveNeitherProcessNorFileWhenKilled) {
  Command command(long_comparison(elsewhere_.file("report.json"), "nats"));
  ASSERT_TRUE(have_a_folder());
  command.kill(SIGKILL);
  command.wait();
  EXPECT_EQ(left_files(), std::vector<std::string>{});
  EXPECT_FALSE(command.left_processes());
}

TEST(RowsOfDbus, LeaveNeitherProcessNorFileWhenStopped) {
  const auto named = [](const auto& row) { return row->info().mechanism == "dbus"; };
  if (std::ranges::none_of(compare::all_rows().rows, named)) return;  // nothing to leave
  const ScratchDirectory directory;
  const ScratchDirectory elsewhere;
  ::setenv("TMPDIR", directory.file("").c_str(), 1);
  Command command(long_comparison(elsewhere.file("report.json"), "dbus"));
  ::unsetenv("TMPDIR");
  EXPECT_TRUE(eventually([&] { return !directory.files().empty(); }));
  command.kill(SIGINT);
  const Finished finished = command.wait();
  EXPECT_EQ(finished.code, 128 + SIGINT) << finished.err;
  EXPECT_EQ(directory.files(), std::vector<std::string>{});
  EXPECT_FALSE(command.left_processes());
}

TEST_F(RowsOfNats, LeaveNoFileWhenTheirServerDies) {
  const Finished finished = run_farcall({"compare", "--workload", "dead-peer", "--rows", "nats"});
  EXPECT_EQ(finished.code, 0) << finished.err;
  EXPECT_EQ(directory_.files(), std::vector<std::string>{});
}

}  // namespace
}  // namespace farcall::test
