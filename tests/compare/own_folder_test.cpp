// SPDX-License-Identifier: Apache-2.0
//
// What peers leave when they are killed is removed all the same.
#include "compare/rows/own_folder.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "farcall/error.hpp"
#include "harness/scratch.hpp"

namespace farcall::compare {
namespace {

// Folders are made in one of this test. Orphans come back to this process, so that they can be
// waited for.
class OwnFolders : public testing::Test {
 protected:
  void SetUp() override {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::setenv("TMPDIR", place_.path().c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("TMPDIR");
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  }
  // A process that has one, as has a child of it, whose number comes by `ready`.
  static pid_t start_owner(int ready, bool in_own_group = false) {
    const pid_t owner = ::fork();
    if (owner == 0) {
      const rlimit no_core{};
      ::setrlimit(RLIMIT_CORE, &no_core);
      if (in_own_group) ::setpgid(0, 0);
      const OwnFolder folder("farcall-");
      const pid_t other = ::fork();
      if (other != 0) {
        if (::write(ready, &other, sizeof other) != sizeof other) ::_exit(1);
      }
      for (;;) ::pause();
    }
    return owner;
  }
  [[nodiscard]] bool is_there() const { return !std::filesystem::is_empty(place_.path()); }

  test::ScratchDirectory place_;
};

TEST_F(OwnFolders, AreRemovedWhenAllWhoHaveThemWereKilledAndNotBefore) {
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
  EXPECT_TRUE(is_there()) << "the other still has it";
  ::kill(other, SIGKILL);
  ASSERT_EQ(::waitpid(other, nullptr, 0), other);
  ASSERT_GT(::waitpid(-1, nullptr, 0), 0) << "who removes it";
  EXPECT_FALSE(is_there());
}

TEST_F(OwnFolders, AreRemovedWhenTheirOwnerIsKilledAsSoonAsTheyAreThere) {
  for (int times = 0; times < 20; ++times) {
    const pid_t owner = ::fork();
    if (owner == 0) {
      const OwnFolder folder("farcall-");
      ::_exit(0);
    }
    while (!is_there() && ::waitpid(owner, nullptr, WNOHANG) == 0) {
    }
    ::kill(owner, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ASSERT_FALSE(is_there()) << times;
  }
}

// As timeout(1), shells and terminals do.
TEST_F(OwnFolders, AreRemovedWhenAllOfTheirOwnersGroupGetTheSignal) {
  for (const int signal : {SIGKILL, SIGQUIT, SIGALRM, SIGUSR1}) {
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const UniqueFd here(ready[0]);
    UniqueFd there(ready[1]);
    const pid_t owner = start_owner(there.get(), true);
    there.reset();
    pid_t other = 0;
    ASSERT_EQ(::read(here.get(), &other, sizeof other), static_cast<ssize_t>(sizeof other));
    ASSERT_EQ(::kill(-owner, signal), 0);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ASSERT_FALSE(is_there()) << signal;
  }
}

TEST_F(OwnFolders, AreGoneWhenTheirOwnerHasDestroyedThem) {
  std::string also;
  {
    const OwnFolder folder("farcall-a-", [this](const std::filesystem::path& path) {
      ::rmdir((place_.path() + "/of-" + path.filename().string()).c_str());
    });
    ASSERT_TRUE(std::filesystem::is_directory(folder.path()));
    also = place_.path() + "/of-" + std::filesystem::path(folder.path()).filename().string();
    ASSERT_EQ(::mkdir(also.c_str(), 0700), 0);
    ASSERT_EQ(::mkdir((folder.path() + "/in").c_str(), 0700), 0);
  }
  EXPECT_FALSE(is_there()) << also;
}

TEST_F(OwnFolders, TellWhyThereIsNone) {
  try {
    const OwnFolder folder("none/farcall-");
    FAIL() << folder.path();
  } catch (const SystemError& error) {
    EXPECT_EQ(error.code().value(), ENOENT) << error.what();
  }
}

}  // namespace
}  // namespace farcall::compare
