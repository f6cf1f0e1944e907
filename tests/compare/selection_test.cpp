// SPDX-License-Identifier: Apache-2.0
#include "compare/selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "farcall/channel/mechanism.hpp"

namespace farcall::compare {
namespace {

std::set<std::string> mechanisms(const Selection& selection) {
  std::set<std::string> names;
  for (const Row* row : selection.rows) names.insert(row->info().mechanism);
  return names;
}

class SelectionOfRows : public testing::Test {
 protected:
  Selection select(const std::vector<std::string>& names,
                   const std::vector<std::string>& waits = {}) const {
    return select_rows(list_, names, waits);
  }
  RowList list_ = all_rows();
};

TEST_F(SelectionOfRows, ByNameHasThatRowInEveryWayOfWaiting) {
  const Selection selection = select({"ring"});
  EXPECT_EQ(mechanisms(selection), std::set<std::string>{"ring"});
  EXPECT_EQ(selection.rows.size(), 3U);
}

TEST_F(SelectionOfRows, ByWaitLeavesRowsThatHaveNoChoice) {
  const Selection selection = select({"ring", "pipe", "cacheline_pingpong"}, {"adaptive"});
  EXPECT_EQ(selection.rows.size(), 3U);
}

TEST_F(SelectionOfRows, OfAllIsEveryRow) {
  EXPECT_EQ(select({"all"}).rows.size(), list_.rows.size());
}

TEST_F(SelectionOfRows, OfControlsIsTheControls) {
  EXPECT_EQ(mechanisms(select({"controls"})),
            (std::set<std::string>{"null_call", "memcpy", "cacheline_pingpong", "cacheline_shared",
                                   "copy_pair", "futex_pingpong", "lines_pingpong"}));
}

TEST_F(SelectionOfRows, OfChannelsIsTheChannelsAndNothingElse) {
  std::set<std::string> channels;
  for (const auto& mechanism : channel::all_mechanisms())
    channels.insert(std::string(mechanism.properties().name));
  EXPECT_EQ(mechanisms(select({"channels"})), channels);
}

// Each row is of one kind, whatever libraries it goes through.
TEST_F(SelectionOfRows, OfTheKindsIsEveryRowOnce) {
  std::size_t rows = 0;
  for (const char* kind : {"controls", "shared", "linux", "kernel", "peers"})
    rows += select({kind}).rows.size();
  EXPECT_EQ(rows, list_.rows.size());
  for (const Row* row : select({"peers"}).rows) EXPECT_NE(row->info().mechanism, "call");
  for (const Row* row : select({"shared"}).rows) {
    EXPECT_NE(row->info().mechanism, "thrift_farcall");
    EXPECT_NE(row->info().mechanism, "bridge");
  }
}

TEST_F(SelectionOfRows, AddsGroupsAndNamesOnce) {
  const Selection selection = select({"controls", "memcpy", "pipe"});
  EXPECT_EQ(selection.rows.size(), 8U);
}

TEST_F(SelectionOfRows, NamesWhatIsAbsent) {
  RowList list;
  list.absent.push_back({"zeromq", "not here"});
  EXPECT_EQ(select_rows(list, {"peers"}, {}).absent.size(), 1U);
  EXPECT_EQ(select_rows(list, {"zeromq"}, {}).absent.size(), 1U);
  EXPECT_EQ(select_rows(list, {"controls"}, {}).absent.size(), 0U);
}

TEST_F(SelectionOfRows, HasIceoryx2OrSaysWhatBringsIt) {
  for (const Workload workload : {Workload::pair, Workload::broadcast, Workload::dead_peer}) {
    const RowList list = all_rows(workload);
    const Selection selection = select_rows(list, {"iceoryx2"}, {});
    if (!selection.rows.empty()) continue;
    ASSERT_EQ(selection.absent.size(), 1U);
    EXPECT_NE(selection.absent.front().reason.find("scripts/setup.sh peers"), std::string::npos);
  }
}

TEST_F(SelectionOfRows, OfDeadPeersHasTwoProcessesEach) {
  const RowList list = all_rows(Workload::dead_peer);
  for (const auto& row : list.rows) EXPECT_FALSE(row->info().one_process) << row->info().mechanism;
  EXPECT_FALSE(list.rows.empty());
}

TEST_F(SelectionOfRows, RefusesUnknownNamesAndTellsTheKnown) {
  try {
    select({"ring", "rong"});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("\"rong\""), std::string::npos) << text;
    EXPECT_NE(text.find("unix_stream"), std::string::npos) << text;
    EXPECT_NE(text.find("controls"), std::string::npos) << text;
  }
}

TEST_F(SelectionOfRows, RefusesUnknownWaits) {
  EXPECT_THROW(select({"ring"}, {"doze"}), UsageError);
}

TEST(SelectionOfSizes, AreSortedAndUnique) {
  EXPECT_EQ(parse_sizes({"1K", "64", "1024"}), (std::vector<std::size_t>{64, 1024}));
}

TEST(SelectionOfSizes, BeginWithNoBytesAtAll) {
  EXPECT_EQ(parse_sizes({"1", "0"}), (std::vector<std::size_t>{0, 1}));
}

TEST(SelectionOfSizes, RefusesWhatIsNoSize) {
  EXPECT_THROW(parse_sizes({""}), UsageError);
  EXPECT_THROW(parse_sizes({"64", "many"}), UsageError);
  EXPECT_THROW(parse_sizes({"2G"}), UsageError);
}

TEST(SelectionOfPlacements, RefusesUnknownOnes) {
  EXPECT_EQ(parse_placements({"one-cpu", "free", "one-cpu"}),
            (std::vector<Placement>{Placement::one_cpu, Placement::free}));
  EXPECT_THROW(parse_placements({"three-cpus"}), UsageError);
}

TEST(SelectionOfReaders, AreSortedAndUniqueAndFrom1To64) {
  EXPECT_EQ(parse_readers({"16", "1", "64", "16"}), (std::vector<unsigned>{1, 16, 64}));
  for (const char* wrong : {"", "0", "65", "-1", "4x", "many", "4294967297"})
    EXPECT_THROW(parse_readers({wrong}), UsageError) << wrong;
}

TEST(SelectionOfWorkloads, RefusesUnknownOnes) {
  EXPECT_EQ(parse_workload("pair"), Workload::pair);
  EXPECT_EQ(parse_workload("broadcast"), Workload::broadcast);
  EXPECT_THROW(parse_workload("gossip"), UsageError);
}

TEST(SelectionOfBroadcasts, IsOfRowsThatSayWhatBecomesOfTheSlow) {
  const RowList list = all_rows(Workload::broadcast);
  const Selection all = select_rows(list, {"all"}, {});
  EXPECT_EQ(all.rows.size(), list.rows.size());
  EXPECT_EQ(all.absent.size(), list.absent.size());
  for (const Row* row : all.rows) EXPECT_NE(row->info().policy, "") << row->info().mechanism;
  for (const auto& row : all_rows().rows) EXPECT_EQ(row->info().policy, "");
  EXPECT_EQ(select_rows(list, {"broadcast"}, {"block"}).rows.size(), 1U);
}

}  // namespace
}  // namespace farcall::compare
