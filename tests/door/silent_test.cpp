// SPDX-License-Identifier: Apache-2.0
//
// What a client may pass is any file, also one whose server does not answer who asks what it is.
#include <gtest/gtest.h>

#include "door/impostor.hpp"
#include "door/raw.hpp"
#include "harness/sandbox.hpp"
#include "harness/silent_file.hpp"

namespace farcall::door::test {
namespace {

struct DoorSilent : ::testing::Test {
  void SetUp() override {
    if (!is_root()) GTEST_SKIP() << "needs root, to mount";
    in_child([this] { *error = open_file() >= 0 ? 0 : errno; });
    if (*error != 0) GTEST_SKIP() << "no file systems of users here: " << std::strerror(*error);
  }

  // In a namespace of this process's own.
  int open_file(int flags = O_RDONLY) const {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
      return -1;
    errno = farcall::test::serve_file(path, FUSE_GETATTR);
    if (errno != 0) return -1;
    // Not by the library, which would ask.
    return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), flags | O_CLOEXEC));
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

// How many listeners of that name this process has.
int listeners_of(const AttachAddress& address) {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_un name{};
    socklen_t size = sizeof name;
    int accepts = 0;
    socklen_t one = sizeof accepts;
    count += ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &one) == 0 && accepts != 0 &&
             ::getsockname(fd, reinterpret_cast<sockaddr*>(&name), &size) == 0 &&
             size == address.size && std::memcmp(&name, &address.address, size) == 0;
  }
  return count;
}

// As long as the file says nothing, its server waits with the name in its hands.
TEST_F(DoorSilent, NoChildOfAServerKeepsANameThatSomebodyWantsToGiveIt) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const AttachAddress address(sandbox.file("other"));
  const ScopedServer forking([&] {
    static auto count_in_child = [=](char*, size_t, door_desc_t*, uint_t) {
      const int here = listeners_of(address);
      const pid_t child = ::fork();
      if (child == 0) ::_exit(listeners_of(address));
      int status = -1;
      while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
      }
      return Answer(std::to_string(here) + " " + std::to_string(status));
    };
    return make_door(count_in_child);
  });
  in_child([&] {
    const UniqueFd file(open_file(O_PATH));
    ASSERT_GE(file.get(), 0);
    const auto [here, there] = packet_socket_pair();
    const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(listener.get(), address.get(), address.size), 0);
    ASSERT_EQ(::listen(listener.get(), 1), 0);
    send_descriptors(forking.door(), std::array{listener.get(), file.get(), there.get()},
                     kPurposeAttach);
    std::string counted;
    EXPECT_TRUE(eventually([&] { return (counted = call(forking.door()).data)[0] != '0'; }));
    EXPECT_EQ(counted, "1 0");
    // Lets the server go: a thread that waits for such an answer cannot even be killed.
    (void)::umount2(path.c_str(), MNT_FORCE);
  });
}

}  // namespace
}  // namespace farcall::door::test
