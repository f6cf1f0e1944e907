// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that a forked child does not have.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "door/child.hpp"
#include "farcall/memory.hpp"
#include "process/process.hpp"

namespace farcall::test {
namespace {

using door::test::in_child;
using process::PrivateFd;

UniqueFd a_file() { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }
bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(PrivateFd, IsClosedInAChild) {
  const PrivateFd mine(a_file());
  in_child([&] {
    EXPECT_FALSE(is_open(mine.get()));
    EXPECT_FALSE(mine.is_here());
  });
  EXPECT_TRUE(is_open(mine.get()));
}

// Whoever gets a number next that was one's is not closed in children.
TEST(PrivateFd, LeavesItsNumberToOthersWhereItGetsAnother) {
  PrivateFd mine(a_file());
  const int number = mine.get();
  mine = PrivateFd(a_file());
  const UniqueFd others(::fcntl(mine.get(), F_DUPFD_CLOEXEC, number));
  ASSERT_EQ(others.get(), number);
  in_child([&] {
    EXPECT_TRUE(is_open(others.get()));
    EXPECT_FALSE(is_open(mine.get()));
  });
}

TEST(PrivateFd, LeavesItsNumberToWhomItIsReleased) {
  PrivateFd mine(a_file());
  const UniqueFd others = mine.release();
  in_child([&] { EXPECT_TRUE(is_open(others.get())); });
}

}  // namespace
}  // namespace farcall::test
