// SPDX-License-Identifier: Apache-2.0
//
// What a stranger may not bring about who opens the file that a door of root's is attached to.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "door/trust.hpp"

namespace farcall::door::test {
namespace {

// A door behind a path, which strangers may open.
struct DoorTrustPath : DoorTrust {
  Sandbox sandbox;
  std::string path = sandbox.file("door");

  void SetUp() override {
    DoorTrust::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  }
  // A door by hand: what the library does, and keeps.
  [[nodiscard]] UniqueFd open_raw() const {
    const AttachAddress address(path);
    const UniqueFd file(static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_RDONLY)));
    const UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), address.get(), address.size) != 0) return {};
    try {
      send_descriptors(socket.get(), std::array{file.get()}, kPurposeOpen);
    } catch (const SystemError&) {
      return {};
    }
    pollfd answer{.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&answer, 1, 5000) != 1) return {};
    Packet packet = take_packet(socket.get());
    if (packet.descriptors.size() != 1) return {};
    return std::move(packet.descriptors[0]);
  }
};

TEST_F(DoorTrustPath, OneUsersOpensLeaveRoomForOthers) {
  const DescriptorLimit few(200);
  const Shared<Event> full;
  const Shared<Event> over;
  Child hoarder([&] {
    give_up_after(40s);
    ASSERT_TRUE(become(kNobody));
    std::vector<UniqueFd> doors;
    while (UniqueFd one = open_raw()) doors.push_back(std::move(one));
    EXPECT_GT(doors.size(), 10U);
    EXPECT_LE(doors.size(), 50U);
    // What it opens by then is a door or an error, and never the file.
    std::size_t refused = 0;
    for (int i = 0; i < 400 && refused < 60; ++i) {
      UniqueFd one(::open(path.c_str(), O_RDONLY));
      if (one) {
        door_info_t info{};
        EXPECT_EQ(ERROR_OF(::door_info(one.get(), &info)), 0);
        doors.push_back(std::move(one));
      } else {
        EXPECT_EQ(errno, EAGAIN);
        ++refused;
        std::this_thread::sleep_for(1ms);  // what it has asked for in vain is let go meanwhile
      }
    }
    EXPECT_GT(refused, 0U);
    EXPECT_LE(doors.size(), 50U);
    full->happens();
    EXPECT_TRUE(over->wait());
  });
  ASSERT_TRUE(full->wait());
  in_child([&] {
    ASSERT_TRUE(become(kNobody + 1));
    const UniqueFd mine = open_raw();
    ASSERT_TRUE(mine);
    EXPECT_EQ(call(mine.get(), "x").data, "x");
  });
  expect_all_well();
  over->happens();
  EXPECT_EQ(hoarder.join(), 0);
}

TEST_F(DoorTrustPath, AServerWithoutDescriptorsDoesNotSpin) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  const DescriptorLimit few(64);
  std::vector<UniqueFd> all;
  for (;;) {
    UniqueFd one(::dup(0));
    if (!one) break;
    all.push_back(std::move(one));
  }
  Child visitors([&] {
    ASSERT_TRUE(become(kNobody));
    const AttachAddress address(path);
    ::close(3);
    for (int i = 0; i < 12; ++i) {
      all.pop_back();
      const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0);
      (void)::connect(socket, address.get(), address.size);
    }
    ::pause();
  });
  std::this_thread::sleep_for(200ms);
  timespec before{};
  timespec after{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
  std::this_thread::sleep_for(1s);
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
  EXPECT_LT((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1'000'000,
            200 * kSlow);
  all.clear();
  visitors.kill();
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_TRUE(eventually([&] { return open_raw().get() >= 0; })) << "it lets people in again";
  });
}

TEST_F(DoorTrustPath, DescriptorsThatNobodyAskedForAreNotKept) {
  const DescriptorLimit few(400);
  const int refusing = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  giver.door = refusing;
  const Shared<Event> sent;
  Child hostile([&] {
    give_up_after(40s);
    const rlimit many_in_flight{.rlim_cur = 4096, .rlim_max = 4096};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &many_in_flight), 0);
    const UniqueFd mine(receive_door(giving));
    ASSERT_TRUE(become(kNobody));
    std::vector<std::unique_ptr<RawSession>> sessions;
    const std::vector<int> many(250, 0);
    for (int i = 0; i < 8; ++i) {
      sessions.push_back(std::make_unique<RawSession>(mine.get()));
      if (!sessions.back()->welcome()) break;
      try {
        send_descriptors(sessions.back()->socket.get(), many, call::kPurposeData);
      } catch (const SystemError&) {  // NOLINT(bugprone-empty-catch): it has been turned out
      }
      for (std::uint32_t number = 1; number <= 3; ++number) {
        sessions.back()->give(call::Kind::request, number);
        (void)sessions.back()->answered(number, 100ms);
      }
    }
    sent->happens();
    ::pause();
  });
  ASSERT_TRUE(sent->wait());
  EXPECT_TRUE(eventually([] { return open_descriptors() < 200; })) << open_descriptors();
  expect_all_well();
}

// What a vfork child opens and closes has numbers of its own table, whatever threads it shares.
TEST(DoorTrustVfork, WhatAVforkChildOpensClosesNothingHere) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const Sandbox sandbox;
  const std::string path = sandbox.file("door", 0666);
  ASSERT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
  const ScopedServer server([&] {
    EXPECT_TRUE(become(kNobody));
    const int door = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    return door;
  });
  const auto open_fds = [] {
    std::vector<int> all;
    for (int fd = 0; fd < 200; ++fd)
      if (::fcntl(fd, F_GETFD) >= 0) all.push_back(fd);
    return all;
  };
  std::vector<UniqueFd> ours;
  while (ours.size() < 30) ours.emplace_back(::dup(STDIN_FILENO));
  struct stat status {};
  // A thread of this process closes what that leaves, and stays for a while.
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  const UniqueFd door(::open(path.c_str(), O_RDONLY));
  ASSERT_GE(door.get(), 0);
  ASSERT_TRUE(others_come_to_rest());
  const std::vector<int> before = open_fds();
  const pid_t child = ::vfork();  // shares the memory, not the descriptors
  if (child == 0) {
    for (const UniqueFd& fd : ours) ::syscall(SYS_close, fd.get());
    const int opened = ::open(path.c_str(), O_RDONLY);
    ::_exit(opened >= 0 && ::stat(path.c_str(), &status) == 0 ? 0 : 1);
  }
  int result = -1;
  ASSERT_EQ(::waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  EXPECT_FALSE(eventually([&] { return open_fds() != before; }, 10 * kGlance))
      << "a thread of this process has closed what it should not have";
}

}  // namespace
}  // namespace farcall::door::test
