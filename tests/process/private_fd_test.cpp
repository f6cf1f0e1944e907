// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that a forked child does not have.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <atomic>
#include <utility>

#include "farcall/memory.hpp"
#include "farcall/socket.hpp"
#include "harness/child.hpp"
#include "harness/forbidden_call.hpp"
#include "process/process.hpp"

namespace {

// Called once, when something is about to be closed.
std::atomic<void (*)(int fd)> before_close{nullptr};

}  // namespace

extern "C" int close(int fd) {
  static auto* const next = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_NEXT, "close"));
  if (auto* const told = before_close.exchange(nullptr)) told(fd);
  return next(fd);
}

namespace farcall::test {
namespace {

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

// Its number is nobody's by then.
TEST(PrivateFd, IsClosedInAChildThatIsMadeJustBeforeItIsClosed) {
  PrivateFd mine(packet_socket_pair().first);
  static int number;
  static bool forked;
  number = mine.get();
  before_close = [](int fd) {
    ASSERT_EQ(fd, number);
    forked = true;
    in_child([] { EXPECT_FALSE(is_open(number)); });
  };
  mine = {};
  EXPECT_TRUE(forked);
  EXPECT_FALSE(is_open(number));
}

// Who has closed it behind the library's back may have another file there.
TEST(PrivateFd, LeavesAChildTheFileThatHasItsNumberJustBeforeItIsClosed) {
  PrivateFd mine(packet_socket_pair().first);
  static bool forked;
  before_close = [](int number) {
    forked = true;
    const UniqueFd others = a_file();
    ASSERT_EQ(::dup2(others.get(), number), number);
    in_child([=] { EXPECT_TRUE(is_open(number)); });
  };
  mine = {};
  EXPECT_TRUE(forked);
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

// What had the number is closed behind the library's back.
UniqueFd another_file_at(int number) {
  EXPECT_EQ(::syscall(SYS_close, number), 0);
  UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  if (file.get() == number) return file;
  EXPECT_EQ(::syscall(SYS_dup3, file.get(), number, O_CLOEXEC), number);
  return UniqueFd(number);
}

TEST(PrivateFd, LeavesItsNumberToAnotherThatHasIt) {
  PrivateFd mine(a_file());
  const int number = mine.get();
  UniqueFd file = another_file_at(number);
  ASSERT_EQ(file.get(), number);
  const PrivateFd others(std::move(file));
  mine = {};
  EXPECT_TRUE(is_open(number));
  in_child([&] { EXPECT_FALSE(is_open(number)); });
}

TEST(PrivateFd, LeavesAChildTheProgramsFileThatHasItsNumber) {
  PrivateFd mine(a_file());
  const int number = mine.get();
  const UniqueFd file = another_file_at(number);
  ASSERT_EQ(file.get(), number);
  in_child([&] { EXPECT_TRUE(is_open(number)); });
  mine = {};
  EXPECT_TRUE(is_open(number));
}

// Which file a number is of is more than some programs permit themselves to ask.
TEST(PrivateFd, IsClosedWhereThatCannotBeAsked) {
  in_child([] {
    PrivateFd mine(a_file());
    const PrivateFd other(a_file());
    const int number = mine.get();
    ASSERT_TRUE(forbid_call(SYS_statx));
    ASSERT_TRUE(forbid_call(SYS_newfstatat));
    mine = {};
    EXPECT_FALSE(is_open(number));
    in_child([&] { EXPECT_FALSE(is_open(other.get())); });
  });
}

}  // namespace
}  // namespace farcall::test
