// SPDX-License-Identifier: Apache-2.0
//
// What a client may pass is any file, also one whose server does not answer who asks what it is.
#include <gtest/gtest.h>

#include "door/raw.hpp"
#include "door/sandbox.hpp"
#include "silent_file.hpp"

namespace farcall::door::test {
namespace {

struct DoorSilent : ::testing::Test {
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to mount";
    in_child([this] { *error = open_file() >= 0 ? 0 : errno; });
    if (*error != 0) GTEST_SKIP() << "no file systems of users here: " << std::strerror(*error);
  }

  // In a namespace of this process's own.
  int open_file() const {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return -1;
    errno = farcall::test::serve_file(path, FUSE_GETATTR);
    if (errno != 0) return -1;
    // Not by the library, which would ask.
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY | O_CLOEXEC));
  }
  void expect_well() const {
    in_child([this] { EXPECT_EQ(call(server.door()).data, "0"); });
  }

  const Sandbox sandbox;
  const std::string path = sandbox.file("file");
  const Shared<int> error{};
  const ScopedServer server{[] {
    static auto count_all = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
      for (uint_t i = 0; i < count; ++i) ::close(fd_of(descriptors[i]));
      return Answer(std::to_string(count));
    };
    return make_door(count_all);
  }};
};

TEST_F(DoorSilent, AFilePassedIsNotAskedWhetherItIsADoor) {
  in_child([this] {
    const UniqueFd file(open_file());
    ASSERT_GE(file.get(), 0);
    EXPECT_EQ(call(server.door(), {}, {pass(file.get())}).data, "1");
  });
  expect_well();
}

TEST_F(DoorSilent, AFileInPlaceOfASessionIsNotAskedWhichItIs) {
  expect_well();
  in_child([this] {
    const UniqueFd file(open_file());
    ASSERT_GE(file.get(), 0);
    const auto [here, there] = packet_socket_pair();
    send_descriptors(server.door(), std::array{file.get(), there.get()}, call::kPurposeSession);
    pollfd end{.fd = here.get(), .events = POLLIN | POLLRDHUP, .revents = 0};
    (void)::poll(&end, 1, static_cast<int>(kGlance.count()));
    expect_well();
  });
}

}  // namespace
}  // namespace farcall::door::test
