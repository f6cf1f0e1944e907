// SPDX-License-Identifier: Apache-2.0
//
// Both engines side by side: doors of one in hands of the other. For the emulated machine, where
// the module is: see kernel/vm/doors.sh.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <tuple>

#include "door/attached.hpp"
#include "door/engines.hpp"
#include "farcall/doors.h"
#include "farcall/limits.h"

namespace farcall::door::test {
namespace {

TEST(DoorEngine, IsTheKernelsWhereThatIsAskedFor) {
  in_child([] {
    choose("kernel");
    EXPECT_STREQ(engine_of(::door_create(echo, nullptr, 0)), "kernel");
  });
}

// The engine of a server, and that of its client.
class DoorEngines : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  template <class Body>
  void in_client(Body body) {
    in_child([&] {
      choose(std::get<1>(GetParam()));
      body();
    });
  }
  // Makes a door in a server's process.
  template <class Make>
  auto serve(Make make) {
    return [this, make] {
      choose(std::get<0>(GetParam()));
      return make();
    };
  }
};

TEST_P(DoorEngines, CallWhoIsOfTheOther) {
  const ScopedServer server(serve([] { return ::door_create(echo, nullptr, 0); }));
  EXPECT_STREQ(engine_of(server.door()), std::get<0>(GetParam()));
  in_client([&] {
    EXPECT_EQ(call(server.door(), "x").data, "x");
    EXPECT_EQ(call(server.door(), std::string(100'000, 'x')).data, std::string(100'000, 'x'));
    EXPECT_EQ(info_of(server.door()).di_target, server.pid());
    EXPECT_EQ(ERROR_OF(::door_revoke(server.door())), EPERM);
    EXPECT_EQ(ERROR_OF(::door_bind(server.door())), EINVAL);
  });
}

TEST_P(DoorEngines, TellWhoCalls) {
  const ScopedServer server(serve([] {
    static auto who = [](char*, size_t, door_desc_t*, uint_t) {
      door_cred_t credentials{};
      EXPECT_EQ(::door_cred(&credentials), 0);
      answer_number(credentials.dc_pid);
    };
    return make_door(who);
  }));
  in_client([&] { EXPECT_EQ(call(server.door()).number<pid_t>(), ::getpid()); });
}

// A door of the client's goes along, and is called back.
TEST_P(DoorEngines, PassDoorsOfEach) {
  const ScopedServer server(serve([] {
    static auto call_back = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
      EXPECT_EQ(count, 1U);
      EXPECT_EQ(descriptors->d_attributes & DOOR_LOCAL, 0U);
      EXPECT_EQ(descriptors->d_data.d_desc.d_id, id_of(fd_of(*descriptors)));
      return Answer({pass(fd_of(*descriptors), DOOR_DESCRIPTOR | DOOR_RELEASE)},
                    call(fd_of(*descriptors), "back").data);
    };
    return make_door(call_back);
  }));
  in_client([&] {
    const int mine = ::door_create(echo, nullptr, 0);
    const Reply reply = call(server.door(), "x", {pass(mine)});
    EXPECT_EQ(reply.data, "back");
    ASSERT_EQ(reply.descriptors.size(), 1U);
    EXPECT_NE(reply.descriptors[0].d_attributes & DOOR_LOCAL, 0U);
    EXPECT_EQ(reply.descriptors[0].d_data.d_desc.d_id, id_of(mine));
  });
}

TEST_P(DoorEngines, ShareTheirPaths) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const ScopedServer server(serve([&] {
    const int door = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    return door;
  }));
  in_client([&] {
    EXPECT_TRUE(opens_as(path, id_of(server.door())));
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EBUSY);
    EXPECT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
    EXPECT_TRUE(opens_as_file(path));
    EXPECT_EQ(::fattach(mine, path.c_str()), 0) << std::strerror(errno);
    EXPECT_TRUE(opens_as(path, id_of(mine)));
  });
}

INSTANTIATE_TEST_SUITE_P(Door, DoorEngines,
                         testing::Combine(testing::Values("shared", "kernel"),
                                          testing::Values("shared", "kernel")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param)) + "Serves" +
                                  std::get<1>(test.param) + "Calls";
                         });

int mount_a_door(const std::string& path) {
  choose("kernel");
  ::setenv("FARCALL_DOORFS", "yes", 1);
  const int door = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  return door;
}

// Also for programs that know nothing of the library, such as static ones.
TEST(DoorEngine, AMountedPathIsADoorForEveryOpen) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
  const ScopedServer server([&] {
    const int door = mount_a_door(path);
    EXPECT_EQ(ERROR_OF(::fattach(door, path.c_str())), EBUSY);
    return door;
  });
  in_child([&] {
    const auto opened =
        static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC));
    ASSERT_GE(opened, 0);
    EXPECT_EQ(id_of(opened), id_of(server.door()));
    EXPECT_EQ(call(opened, "x").data, "x");
    EXPECT_TRUE(opens_as(path, id_of(server.door())));
    EXPECT_EQ(call(::door_open(path.c_str(), O_RDONLY), "y").data, "y");
    for (const bool by_path : {false, true}) {
      struct stat status {};
      ASSERT_EQ(by_path ? ::stat(path.c_str(), &status) : ::fstat(opened, &status), 0);
      EXPECT_TRUE(S_ISDOOR(status.st_mode));
      EXPECT_EQ(status.st_mode & 0777U, 0640U);
    }
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EBUSY);
    EXPECT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
    EXPECT_TRUE(opens_as_file(path));
    EXPECT_EQ(call(opened, "still").data, "still");
    EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), EINVAL);
  });
}

TEST(DoorEngine, AMountedPathIsADoorWithoutTheDevice) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const ScopedServer server([&] { return mount_a_door(path); });
  in_child([&] {
    ASSERT_EQ(::unshare(CLONE_NEWNS), 0);
    ASSERT_EQ(::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr), 0);
    ASSERT_EQ(::mount("none", "/dev", "tmpfs", 0, nullptr), 0);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
    EXPECT_TRUE(opens_as(path, id_of(server.door())));
    const int opened = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(call(opened, "x").data, "x");
  });
  EXPECT_EQ(::umount2(path.c_str(), MNT_DETACH), 0);
}

// The owner of the file has a say in who may open it, but not in what is mounted over it.
TEST(DoorEngine, AMountedPathIsNotDivertedByTheOwnerOfItsFile) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  ASSERT_EQ(::chown(path.c_str(), 1000, 1000), 0);
  const ScopedServer server([&] { return mount_a_door(path); });
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  const int squatter = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  const int length = std::snprintf(
      name.sun_path + 1, sizeof name.sun_path - 1, "farcall/attach/%lx/%lx",
      static_cast<unsigned long>(status.st_dev), static_cast<unsigned long>(status.st_ino));
  ASSERT_EQ(::seteuid(1000), 0);
  ASSERT_EQ(::bind(squatter, reinterpret_cast<sockaddr*>(&name),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1U +
                                          static_cast<unsigned>(length))),
            0);
  ASSERT_EQ(::listen(squatter, 8), 0);
  ASSERT_EQ(::seteuid(0), 0);
  in_child([&] {
    EXPECT_TRUE(opens_as(path, id_of(server.door())));
    EXPECT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  });
  ::close(squatter);
}

TEST(DoorEngine, WhoMayNotMountIsToldSo) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  ASSERT_EQ(::chown(path.c_str(), 1000, 1000), 0);
  in_child([&] {
    choose("kernel");
    ::setenv("FARCALL_DOORFS", "yes", 1);
    ASSERT_EQ(::setresuid(1000, 1000, 1000), 0);
    const int door = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(door, path.c_str())), EPERM);
    EXPECT_TRUE(opens_as_file(path));
  });
}

TEST(DoorEngine, APoolOfTheKernelsGoesWithItsPrivateDoor) {
  in_child([] {
    choose("kernel");
    ::door_server_create([](door_info_t*) {});  // none, which would stay
    auto make_and_close = [] {
      const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
      ASSERT_GE(door, 0) << std::strerror(errno);
      ::close(door);
    };
    make_and_close();
    const std::size_t before = open_descriptors();
    for (int i = 0; i < 20; ++i) make_and_close();
    EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << list_descriptors();
  });
}

TEST(DoorEngine, ARequestBeyondTheLimitIsRefusedByTheKernelsToo) {
  const ScopedServer server([] {
    choose("kernel");
    farcall_limits limits{};
    limits.size = sizeof limits;
    limits.request_bytes = 50'000;
    EXPECT_EQ(::door_limits_set(&limits), 0);
    return ::door_create(echo, nullptr, 0);
  });
  EXPECT_EQ(error_of(server.door(), std::string(60'000, 'x')), E2BIG);
  EXPECT_EQ(call(server.door(), std::string(40'000, 'x')).data.size(), 40'000U);
}

}  // namespace
}  // namespace farcall::door::test
