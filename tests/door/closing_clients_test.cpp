// SPDX-License-Identifier: Apache-2.0
//
// Calls of clients that close descriptors, their door's and those of the library.
#include <gtest/gtest.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

TEST(DoorCall, ClosingTheLastDescriptorEndsItsSessions) {
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  const std::string held = "/proc/" + std::to_string(server.pid()) + "/fd";
  in_child([&] {
    const std::size_t before = count_entries(held);
    EXPECT_EQ(call(server.door(), "x").data, "x");
    EXPECT_GT(count_entries(held), before);
    ::close(server.door());
    EXPECT_TRUE(eventually([&] { return count_entries(held) <= before; }));
  });
}

// As daemons do. What the library has open is none of theirs, and what they open then is.
TEST(DoorCall, GoesOnWhereTheClientHasClosedAllElse) {
  const int door = ::door_create(echo, nullptr, 0);
  for (const bool by_library : {true, false})
    in_child([&] {
      EXPECT_EQ(call(door, "before").data, "before");
      for (int fd = 3; fd < 256; ++fd) {
        if (fd == door) continue;
        if (by_library)
          ::close(fd);
        else
          ::syscall(SYS_close, fd);
      }
      std::vector<int> own;
      for (int i = 0; i < 100; ++i) own.push_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
      const Reply reply = call(door, "after");
      if (by_library) {
        EXPECT_EQ(reply.data, "after");
      }
      ::close(door);
      in_child([&] {
        for (const int fd : own) EXPECT_GE(::fcntl(fd, F_GETFD), 0) << fd << ", in a child";
      });
      for (const int fd : own) EXPECT_EQ(::close(fd), 0) << fd;
    });
}

TEST(DoorCall, GoesOnWhereTheClientClosesNoRange) {
  const auto door = static_cast<unsigned>(::door_create(echo, nullptr, 0));
  EXPECT_EQ(ERROR_OF(::close_range(door, door - 1, 0)), EINVAL);
  EXPECT_EQ(ERROR_OF(::close_range(door, door, 1 << 7)), EINVAL);
  EXPECT_EQ(call(static_cast<int>(door), "x").data, "x");
}

TEST(DoorCall, GoesOnWhereTheClientClosesARange) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    const int low = ::dup2(door, 3);
    EXPECT_EQ(call(low, "before").data, "before");
    EXPECT_EQ(::close_range(4, ~0U, 0), 0);
    EXPECT_EQ(call(low, "after").data, "after");
    ::closefrom(4);
    EXPECT_EQ(call(low, "after").data, "after");
    ::closefrom(-1);  // all
    EXPECT_LT(::fcntl(low, F_GETFD), 0);
    EXPECT_LT(::fcntl(0, F_GETFD), 0);
  });
}

// Which is closed for the program, and open all the same.
TEST(DoorCall, GoesOnWhereARangeEndsWithWhatTheLibraryHas) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    EXPECT_EQ(call(door, "before").data, "before");
    int kept = -1;
    for (int fd = 3; fd < 256 && kept < 0; ++fd)
      if (fd != door && ::close(fd) < 0 && ::syscall(SYS_fcntl, fd, F_GETFD) >= 0) kept = fd;
    ASSERT_GE(kept, 0);
    const auto number = static_cast<unsigned>(kept);
    EXPECT_EQ(::close_range(number, number, 0), 0);
    EXPECT_EQ(call(door, "after").data, "after");
  });
}

}  // namespace
}  // namespace farcall::door::test
