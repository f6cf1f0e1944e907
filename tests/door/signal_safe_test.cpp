// SPDX-License-Identifier: Apache-2.0
//
// open(2), stat(2), close(2), dup(2) and their relatives are for signal handlers, which may have
// interrupted the allocator, and for children of _Fork(), to which another thread has left it
// locked: the library's allocate nothing.
#include <gtest/gtest.h>

#include "door/attached.hpp"

namespace farcall::door::test {
namespace {

#define FARCALL_SKIP_WITH_OTHER_ALLOCATOR()               \
  FARCALL_SKIP_UNDER_TSAN("has an allocator of its own"); \
  FARCALL_SKIP_UNDER_ASAN("has an allocator of its own")

// Expects that the program ends well.
void expect_to_allocate_nothing(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), FARCALL_UNALLOCATING);
  Child program([&] {
    std::vector<char*> all;
    all.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) all.push_back(argument.data());
    all.push_back(nullptr);
    ::execv(all[0], all.data());
  });
  EXPECT_EQ(program.join(), 0) << "40 * 256: it has allocated, in " << arguments[1];
}

struct DoorSignalSafe : testing::Test {
  Sandbox sandbox;
  // Its own file, and another user's where there can be one.
  std::vector<std::string> paths{sandbox.file("own"), sandbox.file("other", 0666)};

  void SetUp() override {
    if (is_root()) {
      ASSERT_EQ(::chown(paths[1].c_str(), kNobody, kNobody), 0) << std::strerror(errno);
    }
  }
};

TEST_F(DoorSignalSafe, FilesAreOpenedAndLookedAt) {
  FARCALL_SKIP_WITH_OTHER_ALLOCATOR();
  expect_to_allocate_nothing({"files", paths[0], paths[1]});
}

TEST_F(DoorSignalSafe, FilesAreOpenedInAChildOfUnderscoreFork) {
  FARCALL_SKIP_WITH_OTHER_ALLOCATOR();
  expect_to_allocate_nothing({"fork", paths[0], paths[1]});
}

TEST_F(DoorSignalSafe, DoorsAreDuplicatedAndClosed) {
  FARCALL_SKIP_WITH_OTHER_ALLOCATOR();
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::fattach(door, paths[0].c_str()), 0) << std::strerror(errno);
  expect_to_allocate_nothing({"door", paths[0]});
}

TEST_F(DoorSignalSafe, OwnDoorsAreDuplicatedAndClosed) {
  FARCALL_SKIP_WITH_OTHER_ALLOCATOR();
  expect_to_allocate_nothing({"own", paths[0]});
}

}  // namespace
}  // namespace farcall::door::test
