// SPDX-License-Identifier: Apache-2.0
//
// Who closes sockets elsewhere has a copy of the lowest numbers for a moment, and for longer where
// a file among them is long in closing.
#include "process/exit_close.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <string>
#include <utility>

#include "farcall/memory.hpp"
#include "harness/child.hpp"
#include "harness/sandbox.hpp"
#include "harness/silent_file.hpp"
#include "process/process.hpp"

namespace farcall::test {
namespace {

struct ExitClose : testing::Test {
  Sandbox sandbox;
  std::string silent = sandbox.file("silent");
  std::string locked = sandbox.file("locked");

  // A file whose server does not let it be closed, with a lower number than all that is opened
  // later; none where users have no file systems here.
  [[nodiscard]] UniqueFd silent_file() const {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        serve_file(silent, FUSE_FLUSH) != 0)
      return {};
    return UniqueFd(::open(silent.c_str(), O_RDONLY | O_CLOEXEC));
  }
  [[nodiscard]] UniqueFd open_locked() const {
    return UniqueFd(::open(locked.c_str(), O_RDWR | O_CLOEXEC));
  }
  // So that what waits for its server ends.
  void give_up_silent() const { ::umount2(silent.c_str(), MNT_FORCE); }
};

// Somebody is held up with a copy of all numbers then.
void be_held_up() {
  std::list<process::PrivateFd> sockets;
  sockets.emplace_back(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  EXPECT_FALSE(process::close_by_exit(sockets));
}

struct Pipe {
  UniqueFd reader, writer;

  Pipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    reader = UniqueFd(ends[0]);
    writer = UniqueFd(ends[1]);
  }
  [[nodiscard]] bool has_ended() const {
    pollfd end{.fd = reader.get(), .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 0) == 1 && (end.revents & POLLHUP) != 0;
  }
};

TEST_F(ExitClose, HoldsNothingOfTheProgramsForThatOfAPeer) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (!is_root()) GTEST_SKIP() << "needs root, to mount";
  in_child([&] {
    process::PrivateFd peers = process::PrivateFd::of_peer(silent_file());
    if (!peers) return;
    Pipe pipe;
    UniqueFd lock = open_locked();
    ASSERT_LT(peers.get(), pipe.writer.get());
    ASSERT_LT(lock.get(), 64);
    ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
    be_held_up();
    pipe.writer.reset();
    EXPECT_TRUE(pipe.has_ended());
    lock.reset();
    EXPECT_EQ(::flock(open_locked().get(), LOCK_EX | LOCK_NB), 0) << std::strerror(errno);
    give_up_silent();
  });
}

// The program may have been given it, or have opened it.
TEST_F(ExitClose, HoldsNoPipesForAFileOfTheProgram) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (!is_root()) GTEST_SKIP() << "needs root, to mount";
  in_child([&] {
    const UniqueFd file = silent_file();
    if (!file) return;
    Pipe pipe;
    ASSERT_LT(file.get(), pipe.writer.get());
    ASSERT_LT(pipe.writer.get(), 64);
    be_held_up();
    pipe.writer.reset();
    EXPECT_TRUE(pipe.has_ended());
    give_up_silent();
  });
}

// A lock of fcntl(2) goes with the first descriptor of its file that the process closes. A copy in
// another table is not the process's.
TEST_F(ExitClose, LeavesTheProgramItsRecordLocks) {
  const UniqueFd lock = open_locked();
  const UniqueFd look = open_locked();
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  ASSERT_LT(lock.get(), 64);
  ASSERT_EQ(::fcntl(lock.get(), F_SETLK, &whole), 0) << std::strerror(errno);
  std::list<process::PrivateFd> sockets;
  sockets.emplace_back(UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)));
  EXPECT_TRUE(process::close_by_exit(sockets)) << "not on this system";
  EXPECT_EQ(::fcntl(look.get(), F_OFD_GETLK, &whole), 0) << std::strerror(errno);
  EXPECT_EQ(whole.l_type, F_WRLCK);
}

}  // namespace
}  // namespace farcall::test
