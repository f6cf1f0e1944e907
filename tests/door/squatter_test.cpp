// SPDX-License-Identifier: Apache-2.0
//
// Those who take the name at which a file's door would be found.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/un.h>

#include <thread>

#include "door/attached.hpp"
#include "door/impostor.hpp"
#include "farcall/doors.h"
#include "process/identity.hpp"

namespace farcall::door::test {
namespace {

// What a user namespace shows for users that it does not know.
constexpr uid_t kOverflow = 65534;

constexpr uid_t kStranger = 2000;

bool write_file(const char* path, std::string_view text) {
  const UniqueFd file(::open(path, O_WRONLY));
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Into a user namespace that knows no user, or root alone.
bool leave_users_behind() { return ::unshare(CLONE_NEWUSER) == 0; }
bool leave_all_but_root_behind() {
  return leave_users_behind() && write_file("/proc/self/setgroups", "deny") &&
         write_file("/proc/self/uid_map", "0 0 1") && write_file("/proc/self/gid_map", "0 0 1");
}

// Takes the name of a file, and lets nobody in: as many wait as may.
struct Squatter {
  UniqueFd listener{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  std::vector<UniqueFd> waiting;

  explicit Squatter(const AttachAddress& address) {
    EXPECT_EQ(::bind(listener.get(), address.get(), address.size), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    for (;;) {
      UniqueFd one(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (::connect(one.get(), address.get(), address.size) != 0) break;
      waiting.push_back(std::move(one));
    }
    EXPECT_EQ(errno, EAGAIN);
  }
};

// Whether a thread of this process is in connect().
bool connects(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
  long number = -1;
  return file >> number && number == SYS_connect;
}

struct DoorSquatter : ::testing::Test {
  Sandbox sandbox;
  std::string path = sandbox.file("file");
};

// The errno that fattach(3) has for a door that nobody serves.
TEST_F(DoorSquatter, ADoorWhoseServerIsStoppedCannotBeAttached) {
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  ASSERT_TRUE(stop_process(server.pid()));
  EXPECT_EQ(ERROR_OF(::fattach(server.door(), path.c_str())), EBADF);
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
}

TEST_F(DoorSquatter, NoChildOfWhoAttachesKeepsTheName) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const AttachAddress address(path);
  const FakeDoor fake(4711);
  std::thread attaching(
      [&] { EXPECT_EQ(ERROR_OF(::fattach(fake.door.get(), path.c_str())), ENOSPC); });
  pollfd request{.fd = fake.inner.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&request, 1, static_cast<int>(kPatience.count())), 1);
  const Shared<Event> forked;
  const Shared<Event> over;
  Child child([&] {
    forked->happens();
    EXPECT_TRUE(over->wait());
  });
  EXPECT_TRUE(forked->wait());
  {
    const Packet packet = take_packet(fake.inner.get());
    EXPECT_EQ(packet.descriptors.size(), 3U);
    if (packet.descriptors.size() == 3) send_descriptors(packet.descriptors[2].get(), {}, ENOSPC);
  }
  attaching.join();
  const UniqueFd next(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  // What the server was sent is closed elsewhere.
  EXPECT_TRUE(eventually([&] { return ::bind(next.get(), address.get(), address.size) == 0; }));
  over->happens();
  EXPECT_EQ(child.join(), 0);
}

TEST_F(DoorSquatter, DelaysNobodyWhoOpensTheFile) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const AttachAddress address(path);
  Shared<Event> ready;
  Shared<Event> over;
  Child stranger([&] {
    ASSERT_TRUE(become(kStranger));
    const Squatter squatter(address);
    ready->happens();
    over->await();
  });
  ASSERT_TRUE(ready->wait());
  const std::int64_t start = now_ns();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(opens_as_file(path));
    struct stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISREG(status.st_mode));
  }
  EXPECT_LT(now_ns() - start, 10'000'000'000) << "each has waited";
  over->happens();
  EXPECT_EQ(stranger.join(), 0);
}

TEST_F(DoorSquatter, IsWaitedForIfItMayAttach) {
  const int door = ::door_create(echo, nullptr, 0);
  const Squatter squatter{AttachAddress(path)};
  Event begun;
  pid_t thread = 0;
  Caller caller([&] {
    thread = ::gettid();
    begun.happens();
    const UniqueFd opened(::open(path.c_str(), O_RDONLY));
    return call(opened.get(), "x");
  });
  ASSERT_TRUE(begun.wait());
  EXPECT_TRUE(eventually([&] { return connects(thread); }));
  for (std::size_t i = 0; i < squatter.waiting.size(); ++i)
    ::close(::accept4(squatter.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const UniqueFd visitor(::accept4(squatter.listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  pollfd something{.fd = visitor.get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&something, 1, static_cast<int>(kPatience.count())), 1);
  EXPECT_EQ(take_packet(visitor.get()).purpose, kPurposeOpen);
  send_descriptors(visitor.get(), std::array{door});
  EXPECT_EQ(caller.reply().data, "x");
}

// The end of such a server's socket, with the question still in it, is told before its answer.
TEST_F(DoorSquatter, AnswersAlsoIfItHasNotReadTheQuestion) {
  const int door = ::door_create(echo, nullptr, 0);
  const AttachAddress address(path);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), address.get(), address.size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  Child opener([&] {
    const UniqueFd opened(::open(path.c_str(), O_RDONLY));
    EXPECT_EQ(call(opened.get(), "x").data, "x");
  });
  {
    const UniqueFd visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pollfd asked{.fd = visitor.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&asked, 1, static_cast<int>(kPatience.count())), 1);
    EXPECT_TRUE(stop_process(opener.pid()));  // it finds answer and end together
    send_descriptors(visitor.get(), std::array{door});
  }
  EXPECT_EQ(::kill(opener.pid(), SIGCONT), 0);
  EXPECT_EQ(opener.join(), 0);
}

// Who may attach, and answers with another file.
TEST_F(DoorSquatter, WhatIsNoDoorIsNotOpenedForOne) {
  const AttachAddress address(path);
  struct stat file {};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  const UniqueFd listener(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(listener.get(), address.get(), address.size), 0);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  const UniqueFd other(::memfd_create("other", MFD_CLOEXEC));
  std::thread answers([&] {
    const UniqueFd visitor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    pollfd asked{.fd = visitor.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&asked, 1, static_cast<int>(kPatience.count())), 1);
    EXPECT_EQ(take_packet(visitor.get()).purpose, kPurposeOpen);
    send_descriptors(visitor.get(), std::array{other.get()});
  });
  const UniqueFd opened(::open(path.c_str(), O_RDONLY));
  answers.join();
  struct stat status {};
  ASSERT_EQ(::fstat(opened.get(), &status), 0);
  EXPECT_EQ(std::pair(status.st_dev, status.st_ino), std::pair(file.st_dev, file.st_ino));
}

// What a program gets where a door is attached whose server says nothing: an error, not the file.
void expect_nobody_answers(const std::string& path) {
  EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_RDONLY)), ETIMEDOUT);
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_TRUE(S_ISDOOR(status.st_mode));
}

TEST_F(DoorSquatter, IsAnErrorIfItMayAttach) {
  const Squatter squatter{AttachAddress(path)};
  expect_nobody_answers(path);
  EXPECT_EQ(ERROR_OF(::open(path.c_str(), O_WRONLY | O_TRUNC)), ETIMEDOUT);
  EXPECT_EQ(content_of(path), kContent);
  EXPECT_EQ(ERROR_OF(::door_open(path.c_str(), O_RDONLY)), ETIMEDOUT);
  EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), ETIMEDOUT);
}

int attached_door(const std::string& path) {
  const int mine = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(::fattach(mine, path.c_str()), 0) << std::strerror(errno);
  return mine;
}

TEST_F(DoorSquatter, AServerThatIsStoppedIsNone) {
  ScopedServer server([&] { return attached_door(path); });
  ASSERT_TRUE(stop_process(server.pid()));
  const std::size_t descriptors = open_descriptors();
  expect_nobody_answers(path);
  EXPECT_TRUE(eventually([&] { return open_descriptors() == descriptors; }));
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  EXPECT_TRUE(opens_as(path, id_of(server.door())));
}

TEST_F(DoorSquatter, AServerThatIsStoppedDetachesNothing) {
  ScopedServer server([&] { return attached_door(path); });
  ASSERT_TRUE(stop_process(server.pid()));
  EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), ETIMEDOUT);
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
}

TEST_F(DoorSquatter, ASignalDoesNotEndTheWaitForAServer) {
  ScopedServer server([&] { return attached_door(path); });
  ASSERT_TRUE(stop_process(server.pid()));
  Caller opens([&] {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY));
    return fd ? call(fd.get(), "x") : Reply{.error = errno, .data = {}, .descriptors = {}};
  });
  opens.signal();
  EXPECT_TRUE(opens.waits());
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  EXPECT_EQ(opens.reply().data, "x");
}

// ---- users that have no number here ----

// In a process that the kernel tells of no user but the overflow id, a stranger has taken the name
// of root's file: it is root's file all the same.
TEST_F(DoorSquatter, IsNotTakenForTheOwnerWhereBothAreUnknown) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const AttachAddress address(path);
  Shared<Event> ready;
  Child stranger([&] {
    ASSERT_TRUE(become(kStranger));
    const FakeDoor fake(0x1234);
    serve_name(address, *ready, [&](int visitor, const Packet& packet) {
      if (packet.kind == Packet::Kind::descriptors)
        send_descriptors(visitor, std::array{fake.door.get()});
    });
  });
  ASSERT_TRUE(ready->wait());
  in_child([&] {
    if (!leave_users_behind()) GTEST_SKIP() << "no user namespaces here";
    ASSERT_EQ(::geteuid(), kOverflow);
    EXPECT_TRUE(opens_as_file(path));
    EXPECT_EQ(content_of(path), kContent);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISREG(status.st_mode));
  });
}

TEST_F(DoorSquatter, KnownUsersDoorsAreOpenedInAUserNamespace) {
  if (!is_root()) GTEST_SKIP() << "needs root, who alone is known there";
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  in_child([&] {
    if (!leave_all_but_root_behind()) GTEST_SKIP() << "no user namespaces here";
    EXPECT_TRUE(opens_as(path, id_of(door)));
  });
}

TEST_F(DoorSquatter, NobodyAttachesToFilesOfTheOverflowId) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chown(path.c_str(), kOverflow, kOverflow), 0);
  in_child([&] {
    ASSERT_TRUE(become(kOverflow));
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EPERM);
  });
  const int door = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(::fattach(door, path.c_str()), 0) << "root may";
  EXPECT_TRUE(opens_as(path, id_of(door)));
}

// Root of a user namespace is root of those alone whom it knows.
TEST_F(DoorSquatter, RootOfOthersAttachesToNoFileOfAnUnknownUser) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  ASSERT_EQ(::chown(path.c_str(), kStranger, kStranger), 0);
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  in_child([&] {
    if (!leave_all_but_root_behind()) GTEST_SKIP() << "no user namespaces here";
    const int mine = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(ERROR_OF(::fattach(mine, path.c_str())), EPERM);
    EXPECT_TRUE(opens_as_file(path));
  });
}

TEST(Users, TheOverflowIdIsThatOfNobody) {
  EXPECT_TRUE(farcall::process::is_overflow_id(kOverflow));
  EXPECT_FALSE(farcall::process::is_overflow_id(0));
  EXPECT_FALSE(farcall::process::is_overflow_id(kStranger));
}

TEST(Users, EveryUserEqualsItselfWhereAllAreKnown) {
  if (!farcall::process::knows_all_users()) GTEST_SKIP() << "in a user namespace";
  for (const uid_t user : {uid_t{0}, kStranger, kOverflow})
    EXPECT_TRUE(farcall::process::same_user(user, user)) << user;
  EXPECT_FALSE(farcall::process::same_user(0, kStranger));
}

TEST(Users, TheOverflowIdEqualsNotEvenItselfWhereSomeAreUnknown) {
  in_child([] {
    if (!leave_users_behind()) GTEST_SKIP() << "no user namespaces here";
    EXPECT_FALSE(farcall::process::knows_all_users());
    EXPECT_FALSE(farcall::process::same_user(kOverflow, kOverflow));
    EXPECT_TRUE(farcall::process::same_user(kStranger, kStranger));
  });
}

}  // namespace
}  // namespace farcall::door::test
