// SPDX-License-Identifier: Apache-2.0
//
// What peers leave when they are killed is removed all the same.
#include "compare/rows/leftovers.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "farcall/error.hpp"

namespace farcall::compare {
namespace {

// A child whose orphans come back to this process, so that they can be waited for.
class LeftoversOfPeers : public testing::Test {
 protected:
  void SetUp() override {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (::mkdtemp(folder_.data()) == nullptr) throw_errno("mkdtemp");
  }
  void TearDown() override {
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
    std::filesystem::remove_all(folder_);
  }
  // Says by `ready` that it has them, and waits to be killed.
  pid_t start_owner(int ready) {
    const pid_t owner = ::fork();
    if (owner == 0) {
      const Leftovers leftovers([this] { ::rmdir(folder_.c_str()); });
      const pid_t other = ::fork();
      if (other != 0) {
        if (::write(ready, &other, sizeof other) != sizeof other) ::_exit(1);
      }
      for (;;) ::pause();
    }
    return owner;
  }
  [[nodiscard]] bool is_there() const { return std::filesystem::exists(folder_); }

  std::string folder_ = testing::TempDir() + "farcall-leftovers-XXXXXX";
};

TEST_F(LeftoversOfPeers, AreRemovedWhenAllWhoHaveThemWereKilledAndNotBefore) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const UniqueFd here(ready[0]);
  UniqueFd there(ready[1]);
  const pid_t owner = start_owner(there.get());
  there.reset();
  pid_t other = 0;
  ASSERT_EQ(::read(here.get(), &other, sizeof other), static_cast<ssize_t>(sizeof other));
  ::kill(owner, SIGKILL);
  ASSERT_EQ(::waitpid(owner, nullptr, 0), owner);
  EXPECT_TRUE(is_there()) << "the other still has them";
  ::kill(other, SIGKILL);
  ASSERT_EQ(::waitpid(other, nullptr, 0), other);
  ASSERT_GT(::waitpid(-1, nullptr, 0), 0) << "who removes them";
  EXPECT_FALSE(is_there());
}

TEST_F(LeftoversOfPeers, AreGoneWhenTheirOwnerHasDestroyedThem) {
  {
    const Leftovers leftovers([this] { ::rmdir(folder_.c_str()); });
  }
  EXPECT_FALSE(is_there());
}

}  // namespace
}  // namespace farcall::compare
