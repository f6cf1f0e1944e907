// SPDX-License-Identifier: Apache-2.0
//
// open(2) of what is no door, which must be as it was without the library.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/inotify.h>

#include <fstream>
#include <vector>

#include "door/attached.hpp"
#include "farcall/doors.h"

namespace farcall::door::test {
namespace {

constexpr uid_t kUser = 2000;

// What has happened to a file since this was made.
class Watch {
 public:
  explicit Watch(const std::string& path) : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {
    EXPECT_GE(::inotify_add_watch(fd_.get(), path.c_str(), IN_OPEN | IN_CLOSE), 0);
  }
  // How often it was opened, and closed.
  [[nodiscard]] std::pair<int, int> opened_and_closed() const {
    std::pair<int, int> counts;
    alignas(inotify_event) char events[4096];
    for (ssize_t size; (size = ::read(fd_.get(), events, sizeof events)) > 0;) {
      for (ssize_t at = 0; at < size;) {
        inotify_event event;
        std::memcpy(&event, events + at, sizeof event);
        counts.first += (event.mask & IN_OPEN) != 0 ? 1 : 0;
        counts.second += (event.mask & IN_CLOSE) != 0 ? 1 : 0;
        at += static_cast<ssize_t>(sizeof event + event.len);
      }
    }
    return counts;
  }

 private:
  UniqueFd fd_;
};

TEST(DoorOpening, CreatGivesAFileThatItsMakerMayNotWriteTo) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const Sandbox sandbox;
  in_child([&] {
    ASSERT_TRUE(become(kUser));
    const UniqueFd made(::creat((sandbox.path() + "/readonly").c_str(), 0444));
    EXPECT_GE(made.get(), 0) << std::strerror(errno);
    EXPECT_EQ(::write(made.get(), "x", 1), 1);
  });
}

TEST(DoorOpening, TruncatingOpensAFileOnce) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("file");
  const Watch watch(path);
  const UniqueFd opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
  ASSERT_GE(opened.get(), 0);
  EXPECT_EQ(watch.opened_and_closed(), std::pair(1, 0));
  EXPECT_EQ(content_of(path), "");
}

// With the last descriptor: there is none left to ask with, or for the door.
TEST(DoorOpening, TruncatingCutsNothingOffThatADoorCovers) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("covered");
  std::ofstream(path) << kContent;
  const Shared<Event> ready;
  Child server([&] {
    const int door = ::door_create(echo, nullptr, 0);
    ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    ready->happens();
    for (;;) ::pause();
  });
  ASSERT_TRUE(ready->wait());
  in_child([&] {
    ::close(::open(path.c_str(), O_RDWR | O_TRUNC));  // all that the library has to have is there
    std::vector<UniqueFd> all;
    for (int fd = 0; (fd = ::dup(STDIN_FILENO)) >= 0;) all.emplace_back(fd);
    for (int left = 1; left <= 3; ++left) {
      all.pop_back();
      const int fd = ::open(path.c_str(), O_RDWR | O_TRUNC);
      if (fd < 0) {
        EXPECT_EQ(errno, EMFILE) << left;
      } else {
        door_info_t info{};
        EXPECT_EQ(::door_info(fd, &info) == 0 || errno == EMFILE, true) << left;
        ::close(fd);
      }
    }
  });
  server.kill();  // then it is a file again
  EXPECT_EQ(content_of(path), kContent);
}

TEST(DoorOpening, AFileNeedsOneDescriptor) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  const Sandbox sandbox;
  const std::string path = sandbox.file("plain");
  in_child([&] {
    ::close(::open(path.c_str(), O_RDONLY));  // all that the library has to have is there
    std::vector<UniqueFd> all;
    for (int fd = 0; (fd = ::dup(STDIN_FILENO)) >= 0;) all.emplace_back(fd);
    all.pop_back();
    EXPECT_GE(::open(path.c_str(), O_RDONLY), 0) << std::strerror(errno);
  });
}

TEST(DoorOpening, TruncatingOpensAFifoOnce) {
  const Sandbox sandbox;
  const std::string path = sandbox.path() + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK));
  const Watch watch(path);
  const UniqueFd writer(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
  ASSERT_GE(writer.get(), 0);
  EXPECT_EQ(watch.opened_and_closed(), std::pair(1, 0));
}

TEST(DoorOpening, TruncatingKeepsTheLocksOfTheProcess) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("lock");
  const UniqueFd locked(::open(path.c_str(), O_RDWR));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(locked.get(), F_SETLK, &lock), 0);
  const UniqueFd again(::open(path.c_str(), O_WRONLY | O_TRUNC));
  ASSERT_GE(again.get(), 0);
  in_child([&] {
    struct flock other {};
    other.l_type = F_WRLCK;
    ASSERT_EQ(::fcntl(locked.get(), F_GETLK, &other), 0);
    EXPECT_EQ(other.l_type, F_WRLCK) << "the lock is gone";
  });
}

TEST(DoorOpening, WhatIsNoFileIsNotOpenedToLookForADoor) {
  const Sandbox sandbox;
  const std::string path = sandbox.path() + "/fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const Watch watch(path);
  EXPECT_EQ(ERROR_OF(::door_open(path.c_str(), O_RDONLY)), EINVAL);
  EXPECT_EQ(watch.opened_and_closed(), std::pair(0, 0));
}

TEST(DoorOpening, AFileWithoutANameHasTheModeThatItIsGiven) {
  const Sandbox sandbox;
  const UniqueFd made(::open(sandbox.path().c_str(), O_TMPFILE | O_RDWR, 0600));
  if (made.get() < 0 && errno == EOPNOTSUPP) GTEST_SKIP() << "no such files in this file system";
  ASSERT_GE(made.get(), 0) << std::strerror(errno);
  struct stat status {};
  ASSERT_EQ(::fstat(made.get(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
}

TEST(DoorOpening, NothingIsAStream) {
  const UniqueFd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::isastream(file.get()), 0);
  EXPECT_EQ(ERROR_OF(::isastream(-1)), EBADF);
}

// From now on the process may make these system calls, must do without others, which fail, and dies
// of the rest.
bool confine(const std::vector<long>& permitted, const std::vector<long>& failing) {
  std::vector<sock_filter> filter{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  const auto answer = [&](const std::vector<long>& numbers, unsigned verdict) {
    for (const long number : numbers) {
      filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1));
      filter.push_back(BPF_STMT(BPF_RET | BPF_K, verdict));
    }
  };
  answer(permitted, SECCOMP_RET_ALLOW);
  answer(failing, SECCOMP_RET_ERRNO | EPERM);
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
  const sock_fprog program{.len = static_cast<unsigned short>(filter.size()),
                           .filter = filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// As fattach(3) says.
TEST(DoorOpening, AFileTakesNoOtherSystemCallsThanThoseOfASocket) {
  FARCALL_SKIP_UNDER_ASAN("makes system calls of its own");
  FARCALL_SKIP_UNDER_TSAN("makes system calls of its own");
  if (::access("/dev/door", F_OK) == 0) GTEST_SKIP() << "the module is here";
  const Sandbox sandbox;
  const std::string own = sandbox.file("own");
  const std::string other = sandbox.file("other", 0666);
  if (is_root()) {
    ASSERT_EQ(::chown(other.c_str(), kNobody, kNobody), 0) << std::strerror(errno);
  }
  in_child([&] {
    ASSERT_TRUE(confine({SYS_openat, SYS_newfstatat, SYS_fstat, SYS_statx, SYS_close, SYS_dup,
                         SYS_dup3, SYS_write, SYS_clock_gettime, SYS_exit_group},
                        {SYS_socket, SYS_connect}))
        << std::strerror(errno);
    for (const char* const path : {own.c_str(), other.c_str()}) {
      struct stat status {};
      struct statx more {};
      EXPECT_EQ(::stat(path, &status), 0);
      EXPECT_TRUE(S_ISREG(status.st_mode));
      EXPECT_EQ(::statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &more), 0);
      const int fd = ::open(path, O_RDONLY);
      EXPECT_EQ(::fstat(fd, &status), 0);
      EXPECT_EQ(::close(::dup(fd)), 0);
      EXPECT_EQ(::close(fd), 0);
      EXPECT_EQ(::close(::open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600)), 0);
    }
  });
}

template <class Call>
int errno_after(Call call) {
  errno = E2BIG;
  EXPECT_GE(call(), 0);
  return errno;
}

TEST(DoorOpening, LeavesErrnoAloneWhereItSucceeds) {
  const Sandbox sandbox;
  const std::string file = sandbox.file("file");
  const char* const path = file.c_str();
  const UniqueFd fd(::open(path, O_RDONLY));
  struct stat status {};
  EXPECT_EQ(errno_after([&] { return UniqueFd(::open(path, O_RDONLY)).get(); }), E2BIG);
  EXPECT_EQ(errno_after([&] { return UniqueFd(::open(path, O_WRONLY | O_TRUNC)).get(); }), E2BIG);
  EXPECT_EQ(errno_after([&] { return UniqueFd(::dup(fd.get())).get(); }), E2BIG);
  EXPECT_EQ(errno_after([&] { return ::stat(path, &status); }), E2BIG);
  EXPECT_EQ(errno_after([&] { return ::fstat(fd.get(), &status); }), E2BIG);
  EXPECT_EQ(errno_after([&] { return ::fstatat(fd.get(), "", &status, AT_EMPTY_PATH); }), E2BIG);
}

}  // namespace
}  // namespace farcall::door::test
