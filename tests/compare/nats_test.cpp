// SPDX-License-Identifier: Apache-2.0
//
// The NATS server that is started for its row, and the folder in which it says where it listens.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "compare/row.hpp"

namespace farcall::compare {
namespace {

namespace fs = std::filesystem;

class NatsServerOfARow : public testing::Test {
 protected:
  void SetUp() override {
    const auto found = std::ranges::find_if(
        list_.rows, [](const auto& row) { return row->info().mechanism == "nats"; });
    if (found == list_.rows.end()) GTEST_SKIP() << "farcall was built without libnats";
    row_ = found->get();
    if (const std::string reason = row_->refuses({.message_bytes = 8, .name = {}}); !reason.empty())
      GTEST_SKIP() << "there is no nats-server";
  }
  // Those of ours; other tests may have servers of their own meanwhile.
  static std::vector<fs::path> folders() {
    std::vector<fs::path> found;
    for (const auto& each : fs::directory_iterator(fs::temp_directory_path()))
      if (each.path().filename().string().starts_with("farcall-nats-")) found.push_back(each);
    return found;
  }

  RowList list_ = all_rows();
  const Row* row_ = nullptr;
};

TEST_F(NatsServerOfARow, IsNotLookedForInAFolderThatSomebodyElseHasMade) {
  const fs::path guessed =
      fs::temp_directory_path() / ("farcall-nats-" + std::to_string(::getpid()));
  fs::create_directory(guessed);
  const fs::path planted = guessed / "nats-server_1.ports";
  std::ofstream(planted) << R"({"nats":["nats://127.0.0.1:1"]})";
  {
    const auto connection = row_->make({.message_bytes = 8, .name = {}});
    EXPECT_NO_THROW(connection->open(Role::client));
    for (const fs::path& folder : folders()) {
      if (folder == guessed) continue;
      EXPECT_EQ(fs::status(folder).permissions(), fs::perms::owner_all) << folder;
    }
  }
  EXPECT_TRUE(fs::exists(planted)) << "another's folder was removed";
  fs::remove_all(guessed);
}

}  // namespace
}  // namespace farcall::compare
