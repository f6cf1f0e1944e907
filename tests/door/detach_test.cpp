// SPDX-License-Identifier: Apache-2.0
//
// fdetach(), and other ways in which a path ceases to be a door.
#include <gtest/gtest.h>

#include "door/attached.hpp"
#include "harness/descriptors.hpp"

namespace farcall::door::test {
namespace {

struct DoorDetach : DoorAttach {};

TEST_F(DoorDetach, DetachingGivesTheFileBack) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  const UniqueFd opened(::open(path.c_str(), O_RDONLY));
  ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  in_server_and_client([&] {
    EXPECT_TRUE(opens_as_file(path));
    EXPECT_EQ(content_of(path), kContent);
    EXPECT_EQ(call(opened.get(), "x").data, "x") << "what was opened before stays a door";
  });
  EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), EINVAL);
}

TEST_F(DoorDetach, DetachingFailsWhereNothingIsAttached) {
  EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), EINVAL);
}

TEST_F(DoorDetach, TheOwnerDetachesFromAnotherProcess) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  in_child([&] { EXPECT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno); });
  in_server_and_client([&] { EXPECT_TRUE(opens_as_file(path)); });
}

TEST_F(DoorDetach, OthersDoNotDetach) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), EPERM);
  });
  EXPECT_TRUE(opens_as(path, id_of(door)));
}

TEST_F(DoorDetach, ADetachedPathTakesAnotherDoor) {
  for (int i = 0; i < 20; ++i) {
    const int next = ::door_create(echo, nullptr, 0);
    ASSERT_EQ(::fattach(next, path.c_str()), 0) << i << ": " << std::strerror(errno);
    EXPECT_TRUE(opens_as(path, id_of(next)));
    ASSERT_EQ(::fdetach(path.c_str()), 0) << i << ": " << std::strerror(errno);
    ASSERT_EQ(::door_revoke(next), 0);
  }
}

TEST_F(DoorDetach, RemovingTheFileDetaches) {
  const door_id_t id = id_of(door);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(::fattach(door, path.c_str()), 0) << i << ": " << std::strerror(errno);
    EXPECT_TRUE(opens_as(path, id));
    ASSERT_EQ(::unlink(path.c_str()), 0);
    EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_RDONLY)), ENOENT);
    EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), ENOENT);
    // A new file of that name may well get the inode of the old one.
    (void)sandbox.file("door");
    EXPECT_TRUE(opens_as_file(path));
    EXPECT_EQ(call(door, "x").data, "x");
  }
}

// Nobody is told of a name that was the last one and has gone before anybody looks.
TEST_F(DoorDetach, AFileThatHasNoNameIsNotKept) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const UniqueFd file(::open(path.c_str(), O_RDWR));
  const std::string link = "/proc/self/fd/" + std::to_string(file.get());
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::fattach(door, link.c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(ERROR_OF(::fdetach(link.c_str())), EINVAL);
}

TEST_F(DoorDetach, RemovingTheFileElsewhereDetaches) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  const std::string command = "rm " + path;
  ASSERT_EQ(std::system(command.c_str()), 0);  // NOLINT(cert-env33-c)
  (void)sandbox.file("door");
  in_server_and_client([&] { EXPECT_TRUE(opens_as_file(path)); });
  EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
}

TEST_F(DoorDetach, AFileMovedOverItIsAFile) {
  const std::string other = sandbox.file("other");
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  ASSERT_EQ(::rename(other.c_str(), path.c_str()), 0);
  in_server_and_client([&] { EXPECT_TRUE(opens_as_file(path)); });
}

// ---- doors that are no more ----

TEST_F(DoorDetach, ARevokedDoorStaysAttached) {
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  const int other = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_revoke(door), 0);
  in_server_and_client([&] {
    const UniqueFd opened(::open(path.c_str(), O_RDONLY));
    ASSERT_GE(opened.get(), 0) << std::strerror(errno);
    EXPECT_EQ(error_of(opened.get()), EBADF);
    EXPECT_NE(info_of(opened.get()).di_attributes & DOOR_REVOKED, 0U);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
  });
  EXPECT_EQ(ERROR_OF(::fattach(other, path.c_str())), EBUSY);
  ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  EXPECT_EQ(::fattach(other, path.c_str()), 0) << std::strerror(errno);
}

TEST_F(DoorDetach, AStaleAttachmentOpensAndCallsGetEbadf) {
  for (int i = 0; i < 5; ++i) {
    ScopedServer server([&] {
      const int mine = ::door_create(echo, nullptr, 0);
      EXPECT_EQ(::fattach(mine, path.c_str()), 0) << std::strerror(errno);
      return mine;
    });
    EXPECT_TRUE(opens_as(path, id_of(server.door())));
    const UniqueFd before(::open(path.c_str(), O_RDONLY));
    if (i % 2 == 0) {
      server.kill();
    } else {
      EXPECT_EQ(server.exit(), 0);
    }
    EXPECT_EQ(error_of(before.get()), EBADF);
    const UniqueFd after(::open(path.c_str(), O_RDONLY));
    ASSERT_GE(after.get(), 0) << std::strerror(errno);
    EXPECT_EQ(error_of(after.get()), EBADF);
    EXPECT_EQ(content_of(path), kContent);
    // Of a door over shared memory nothing is left; the kernel keeps its own at the file, as
    // Solaris does.
    EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), over_module() ? 0 : EINVAL);
  }
}

TEST_F(DoorDetach, LeavesNoDescriptorBehind) {
  auto round = [&] {
    ASSERT_EQ(::fattach(door, path.c_str()), 0);
    const UniqueFd opened(::open(path.c_str(), O_RDONLY));
    EXPECT_EQ(call(opened.get(), "x").data, "x");
    ASSERT_EQ(::fdetach(path.c_str()), 0);
  };
  for (int i = 0; i < 5; ++i) round();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 100; ++i) round();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 2; }))
      << open_descriptors() << " instead of " << before;
}

// Who detaches connects as soon as the path has a listener, before the server knows of it.
TEST_F(DoorDetach, MayComeWhileTheDoorIsBeingAttached) {
  std::size_t before = 0;
  for (int i = 0; i < 80 / kSlow && !HasFailure(); ++i) {
    std::atomic<bool> attached{false};
    std::thread other([&] {
      while (::fdetach(path.c_str()) != 0)
        if (attached) break;
    });
    EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    attached = true;
    other.join();
    (void)::fdetach(path.c_str());
    if (i == 2) before = open_descriptors();
  }
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 2; }))
      << open_descriptors() << " instead of " << before;
}

// The kernel lets a user have some hundred instances of inotify.
TEST_F(DoorAttach, ManyFilesAreWatchedAsOne) {
  constexpr int kFiles = 20;
  std::vector<std::string> files;
  for (int i = 0; i < kFiles; ++i) {
    files.push_back(sandbox.file("file" + std::to_string(i)));
    ASSERT_EQ(::fattach(door, files.back().c_str()), 0) << std::strerror(errno);
  }
  const std::string all = list_descriptors();
  std::size_t instances = 0;
  for (std::size_t at = 0; (at = all.find("inotify", at)) != std::string::npos; ++at) ++instances;
  EXPECT_EQ(instances, 1U) << all;
  const std::size_t before = open_descriptors();
  for (const std::string& file : files) ASSERT_EQ(::unlink(file.c_str()), 0);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before - 2 * kFiles; }))
      << list_descriptors();
}

TEST_F(DoorAttach, AFileThatIsDetachedIsWatchedNoMore) {
  const auto watches = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) count += line.starts_with("inotify wd:");
    }
    return count;
  };
  const std::string other = sandbox.file("other");
  ASSERT_EQ(::fattach(door, other.c_str()), 0) << std::strerror(errno);
  const std::size_t before = watches();
  for (int i = 0; i < 5; ++i) {
    const std::string file = sandbox.file("file" + std::to_string(i));
    ASSERT_EQ(::fattach(door, file.c_str()), 0) << std::strerror(errno);
    ASSERT_EQ(::fdetach(file.c_str()), 0) << std::strerror(errno);
  }
  EXPECT_TRUE(eventually([&] { return watches() == before; })) << watches() << ", not " << before;
}

}  // namespace
}  // namespace farcall::door::test
