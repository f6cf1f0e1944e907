// SPDX-License-Identifier: Apache-2.0
//
// fattach() and fdetach(): doors with names.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <stropts.h>

#include "door/attached.hpp"
#include "farcall/doors.h"

namespace farcall::door::test {
namespace {

TEST_F(DoorAttach, OpenGivesTheDoor) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const door_id_t id = id_of(door);
  in_server_and_client([&] {
    for (const int flags : {O_RDONLY, O_WRONLY, O_RDWR, O_RDWR | O_CLOEXEC, O_RDWR | O_NONBLOCK})
      EXPECT_TRUE(opens_as(path, id, flags)) << flags;
  });
}

TEST_F(DoorAttach, EveryWayToOpenGivesTheDoor) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    const UniqueFd directory(::open(sandbox.path().c_str(), O_RDONLY | O_DIRECTORY));
    const std::string link = sandbox.path() + "/link" + std::to_string(::getpid());
    ASSERT_EQ(::symlink("door", link.c_str()), 0);
    auto is_door = [&](int fd) {
      const UniqueFd owner(fd);
      door_info_t info{};
      return ::door_info(fd, &info) == 0 && info.di_uniquifier == id_of(door);
    };
    EXPECT_TRUE(is_door(::open64(path.c_str(), O_RDONLY)));
    EXPECT_TRUE(is_door(::openat(directory.get(), "door", O_RDONLY)));
    EXPECT_TRUE(is_door(::openat64(directory.get(), "door", O_RDWR)));
    EXPECT_TRUE(is_door(::openat(AT_FDCWD, path.c_str(), O_RDONLY)));
    EXPECT_TRUE(is_door(::open(link.c_str(), O_RDONLY)));
    ASSERT_EQ(::chdir(sandbox.path().c_str()), 0);
    EXPECT_TRUE(is_door(::open("door", O_RDONLY)));
    EXPECT_TRUE(is_door(::open("./door", O_RDONLY)));
    ASSERT_EQ(::chdir("/"), 0);
  });
}

TEST_F(DoorAttach, OpenClosesOnExecOnlyIfAsked) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const UniqueFd kept(::open(path.c_str(), O_RDONLY));
  const UniqueFd closed(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(::fcntl(kept.get(), F_GETFD), 0);
  EXPECT_EQ(::fcntl(closed.get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(DoorAttach, OpenedDoorsAreTheServersInTheServerAlone) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const pid_t server = ::getpid();
  in_server_and_client([&] {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY));
    EXPECT_EQ(info_of(fd.get()).di_target, server);
    EXPECT_EQ(info_of(fd.get()).di_attributes,
              ::getpid() == server ? static_cast<uint_t>(DOOR_LOCAL) : 0U);
  });
}

TEST_F(DoorAttach, UnrelatedProgramsOpenIt) {
  ScopedServer server([&] {
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(::fattach(mine, path.c_str()), 0) << std::strerror(errno);
    return mine;
  });
  const std::string command = std::string(FARCALL_CALLER) + " " + path + " hello";
  FILE* program = ::popen(command.c_str(), "r");  // NOLINT(cert-env33-c)
  ASSERT_NE(program, nullptr);
  char text[100] = {};
  EXPECT_NE(std::fgets(text, sizeof text, program), nullptr);
  EXPECT_EQ(::pclose(program), 0);
  EXPECT_STREQ(text, "hello");
}

TEST_F(DoorAttach, ADoorMayHaveSeveralNames) {
  const std::string second = sandbox.file("second");
  const std::string third = sandbox.file("third");
  for (const std::string& name : {path, second, third})
    ASSERT_EQ(::fattach(door, name.c_str()), 0) << std::strerror(errno);
  const door_id_t id = id_of(door);
  in_server_and_client([&] {
    for (const std::string& name : {path, second, third}) EXPECT_TRUE(opens_as(name, id));
  });
  ASSERT_EQ(::fdetach(second.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    EXPECT_TRUE(opens_as(path, id));
    EXPECT_TRUE(opens_as_file(second));
    EXPECT_TRUE(opens_as(third, id));
  });
}

TEST_F(DoorAttach, NamesInOneDirectoryAreToldApart) {
  const int other = ::door_create(echo, nullptr, 0);
  const std::string second = sandbox.file("second");
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  ASSERT_EQ(::fattach(other, second.c_str()), 0);
  in_server_and_client([&] {
    EXPECT_TRUE(opens_as(path, id_of(door)));
    EXPECT_TRUE(opens_as(second, id_of(other)));
  });
}

TEST_F(DoorAttach, TheFileStaysWhatItIs) {
  struct stat before {};
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(count_entries(sandbox.path()), 1U);
  const UniqueFd opened(::open(path.c_str(), O_RDWR));
  EXPECT_EQ(call(opened.get(), "x").data, "x");
  ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  struct stat after {};
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(after.st_mode, before.st_mode);
  EXPECT_EQ(after.st_uid, before.st_uid);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_size, before.st_size);
  EXPECT_EQ(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  EXPECT_EQ(content_of(path), kContent);
}

TEST_F(DoorAttach, TruncatingIsNotForTheFile) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const door_id_t id = id_of(door);
  in_server_and_client([&] {
    EXPECT_TRUE(opens_as(path, id, O_RDWR | O_TRUNC));
    EXPECT_TRUE(opens_as(path, id, O_WRONLY | O_CREAT | O_TRUNC));
  });
  ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(content_of(path), kContent);
}

TEST_F(DoorAttach, CreatingAndTruncatingOtherFilesIsAsEver) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const std::string plain = sandbox.file("plain");
  ::close(::open(plain.c_str(), O_WRONLY | O_TRUNC));
  EXPECT_EQ(content_of(plain), "");
  const std::string fresh = sandbox.path() + "/fresh";
  const UniqueFd made(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0620));
  ASSERT_GE(made.get(), 0);
  struct stat status {};
  ASSERT_EQ(::fstat(made.get(), &status), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(status.st_mode & 07777, 0620U & ~mask);
  EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600)), EEXIST);
}

// ---- stat ----

TEST_F(DoorAttach, StatSaysItIsADoor) {
  const std::string link = sandbox.path() + "/link";
  ASSERT_EQ(::symlink("door", link.c_str()), 0);
  const std::string plain = sandbox.file("plain");
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    EXPECT_FALSE(S_ISREG(status.st_mode));
    EXPECT_EQ(status.st_mode & 07777, 0644U);
    ASSERT_EQ(::lstat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    ASSERT_EQ(::stat(link.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    ASSERT_EQ(::lstat(link.c_str(), &status), 0);
    EXPECT_TRUE(S_ISLNK(status.st_mode));
    ASSERT_EQ(::fstatat(AT_FDCWD, path.c_str(), &status, 0), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    struct stat64 large {};
    ASSERT_EQ(::stat64(path.c_str(), &large), 0);
    EXPECT_TRUE(S_ISDOOR(large.st_mode));
    ASSERT_EQ(::stat(plain.c_str(), &status), 0);
    EXPECT_TRUE(S_ISREG(status.st_mode));
  });
  ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_TRUE(S_ISREG(status.st_mode));
}

TEST_F(DoorAttach, StatxSaysItIsADoor) {
  const std::string plain = sandbox.file("plain");
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    const UniqueFd opened(::open(path.c_str(), O_RDONLY));
    struct statx status {};
    const auto is_door = [&](int directory, const char* name, int flags, unsigned mask) {
      status = {};
      EXPECT_EQ(::statx(directory, name, flags, mask, &status), 0) << std::strerror(errno);
      return S_ISDOOR(status.stx_mode);
    };
    EXPECT_TRUE(is_door(AT_FDCWD, path.c_str(), 0, STATX_BASIC_STATS));
    EXPECT_EQ(status.stx_mode & 07777, 0644);
    EXPECT_TRUE(is_door(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_MODE));
    EXPECT_TRUE(is_door(opened.get(), "", AT_EMPTY_PATH, STATX_TYPE));
    if (!over_module()) {  // whose doors have a mode of their own
      EXPECT_EQ(status.stx_mode & 07777, 0644);
    }
    EXPECT_FALSE(is_door(AT_FDCWD, plain.c_str(), 0, STATX_BASIC_STATS));
    EXPECT_EQ(::statx(AT_FDCWD, (plain + "x").c_str(), 0, STATX_TYPE, &status), -1);
    EXPECT_EQ(errno, ENOENT);
  });
}

TEST_F(DoorAttach, FstatSaysItIsADoor) {
  FARCALL_SKIP_UNDER_TSAN("has an fstat() of its own");
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    struct stat status {};
    ASSERT_EQ(::fstat(door, &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    const UniqueFd opened(::open(path.c_str(), O_RDONLY));
    ASSERT_EQ(::fstat(opened.get(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    ASSERT_EQ(::fstat(0, &status), 0);
    EXPECT_FALSE(S_ISDOOR(status.st_mode));
  });
}

TEST_F(DoorAttach, FstatShowsThePermissionsOfTheFile) {
  FARCALL_SKIP_UNDER_TSAN("has an fstat() of its own");
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  for (const mode_t mode : {0604U, 0640U, 04711U}) {
    ASSERT_EQ(::chmod(path.c_str(), mode), 0);
    in_server_and_client([&] {
      const UniqueFd opened(::open(path.c_str(), O_RDONLY));
      struct stat status {};
      ASSERT_EQ(::fstat(opened.get(), &status), 0);
      EXPECT_EQ(status.st_mode, S_IFDOOR | mode);
      ASSERT_EQ(::fstatat(opened.get(), "", &status, AT_EMPTY_PATH), 0);
      EXPECT_EQ(status.st_mode, S_IFDOOR | mode);
    });
  }
}

// ---- door_open() ----

TEST_F(DoorAttach, DoorOpenGivesTheDoor) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    const UniqueFd kept(::door_open(path.c_str(), O_RDWR));
    EXPECT_EQ(call(kept.get(), "x").data, "x");
    EXPECT_EQ(::fcntl(kept.get(), F_GETFD), 0);
    const UniqueFd closed(::door_open(path.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(call(closed.get(), "x").data, "x");
    EXPECT_EQ(::fcntl(closed.get(), F_GETFD), FD_CLOEXEC);
  });
}

TEST_F(DoorAttach, DoorOpenSaysWhatIsWrong) {
  EXPECT_EQ(ERROR_OF(::door_open(path.c_str(), O_RDONLY)), EINVAL) << "nothing is attached";
  EXPECT_EQ(ERROR_OF(::door_open(sandbox.path().c_str(), O_RDONLY)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_open((sandbox.path() + "/nowhere").c_str(), O_RDONLY)), ENOENT);
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  EXPECT_EQ(ERROR_OF(::door_open(path.c_str(), O_RDONLY | O_CREAT)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_open(path.c_str(), O_RDONLY | O_TRUNC)), EINVAL);
  EXPECT_EQ(content_of(sandbox.file("other")), kContent);
}

TEST_F(DoorAttach, DoorOpenAsksWhatTheFilePermits) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_EQ(ERROR_OF(::door_open(path.c_str(), O_RDWR)), EACCES);
    EXPECT_GE(::door_open(path.c_str(), O_RDONLY), 0) << std::strerror(errno);
  });
}

// ---- errors ----

TEST_F(DoorAttach, RefusesWhatIsNoDoor) {
  EXPECT_EQ(ERROR_OF(::fattach(0, path.c_str())), EINVAL);
  const UniqueFd file(::open(path.c_str(), O_RDWR));
  EXPECT_EQ(ERROR_OF(::fattach(file.get(), path.c_str())), EINVAL);
  EXPECT_EQ(ERROR_OF(::fattach(-1, path.c_str())), EBADF);
  EXPECT_TRUE(opens_as_file(path));
}

TEST_F(DoorAttach, RefusesARevokedDoor) {
  const UniqueFd second(::dup(door));
  ASSERT_EQ(::door_revoke(door), 0);
  in_server_and_client([&] { EXPECT_EQ(ERROR_OF(::fattach(second.get(), path.c_str())), EBADF); });
  EXPECT_TRUE(opens_as_file(path));
}

TEST_F(DoorAttach, RefusesAPathThatIsNotThere) {
  const std::string nowhere = sandbox.path() + "/nowhere";
  EXPECT_EQ(ERROR_OF(::fattach(door, nowhere.c_str())), ENOENT);
  EXPECT_EQ(ERROR_OF(::fattach(door, (nowhere + "/door").c_str())), ENOENT);
  EXPECT_EQ(ERROR_OF(::fattach(door, "")), ENOENT);
  EXPECT_EQ(ERROR_OF(::fdetach(nowhere.c_str())), ENOENT);
  EXPECT_EQ(count_entries(sandbox.path()), 1U);
}

TEST_F(DoorAttach, RefusesAPathThatHasADoor) {
  const int other = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  EXPECT_EQ(ERROR_OF(::fattach(door, path.c_str())), EBUSY);
  EXPECT_EQ(ERROR_OF(::fattach(other, path.c_str())), EBUSY);
  in_child([&] {
    const int childs = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(childs, path.c_str())), EBUSY);
  });
  EXPECT_TRUE(opens_as(path, id_of(door)));
}

TEST_F(DoorAttach, RefusesOtherPeoplesFiles) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const int mine = ::door_create(echo, nullptr, 0);
    ASSERT_GE(mine, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EPERM);
  });
  EXPECT_TRUE(opens_as_file(path));
}

TEST_F(DoorAttach, RefusesFilesThatMayNotBeWritten) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  constexpr uid_t kUser = 2000;
  ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(::chown(path.c_str(), kUser, kUser), 0);
  in_child([&] {
    ASSERT_TRUE(become(kUser));
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EACCES);
    ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
    EXPECT_EQ(::fattach(mine, path.c_str()), 0) << std::strerror(errno);
    EXPECT_TRUE(opens_as(path, id_of(mine)));
  });
}

TEST_F(DoorAttach, OthersOpenAFileThatTheyMayOnlyWriteTo) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chmod(path.c_str(), 0602), 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_TRUE(opens_as(path, id_of(door), O_WRONLY));
    EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_RDONLY)), EACCES);
  });
}

TEST_F(DoorAttach, RootOpensWhatOthersHaveAttached) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  const ScopedServer server([&] {
    EXPECT_TRUE(become(kNobody));
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(::fattach(mine, path.c_str()), 0) << std::strerror(errno);
    return mine;
  });
  EXPECT_TRUE(opens_as(path, id_of(server.door())));
}

TEST_F(DoorAttach, AsksWhetherTheUserThatItActsForMayWrite) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  constexpr uid_t kUser = 2000;
  ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
  ASSERT_EQ(::chown(path.c_str(), kUser, kUser), 0);
  in_child([&] {
    ASSERT_EQ(::setresgid(0, kUser, 0), 0);
    ASSERT_EQ(::setresuid(0, kUser, 0), 0);
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EACCES);
  });
}

TEST_F(DoorAttach, RefusesPathsThatMayNotBeSearched) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  ASSERT_EQ(::chmod(sandbox.path().c_str(), 0700), 0);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EACCES);
    EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), EACCES);
    EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_RDONLY)), EACCES);
  });
}

TEST_F(DoorAttach, TheFilesModeSaysWhoMayOpenTheDoor) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chmod(path.c_str(), 0604), 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  const door_id_t id = id_of(door);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_TRUE(opens_as(path, id));
    EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_RDWR)), EACCES);
  });
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_RDONLY)), EACCES);
  });
}

}  // namespace
}  // namespace farcall::door::test
