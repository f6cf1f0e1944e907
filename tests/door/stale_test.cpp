// SPDX-License-Identifier: Apache-2.0
//
// Descriptor numbers that come to stand for something else without the library's knowledge.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "door/attached.hpp"
#include "farcall/wait.hpp"

namespace farcall::door::test {
namespace {

// Longer than what is known of a number is taken for true.
void let_knowledge_age() {
  const std::uint64_t start = ticks();
  while (ticks() - start < 100'000) relax();
}

void say_other(void*, char*, size_t, door_desc_t*, uint_t) { answer("other"); }

struct DoorStale : ::testing::Test {
  int door = ::door_create(echo, nullptr, 0);
  int other = ::door_create(say_other, nullptr, 0);
};

TEST_F(DoorStale, ANumberThatWasReusedBySystemCallsIsTheOtherDoor) {
  in_server_and_client([&] {
    const UniqueFd number(::dup(door));
    ASSERT_EQ(call(number.get(), "x").data, "x");
    ASSERT_EQ(::syscall(SYS_close, number.get()), 0);
    ASSERT_EQ(::syscall(SYS_dup3, other, number.get(), 0), number.get());
    let_knowledge_age();
    EXPECT_EQ(call(number.get(), "x").data, "other");
    EXPECT_EQ(id_of(number.get()), id_of(other));
  });
}

TEST_F(DoorStale, ANumberThatWasClosedBySystemCallsIsNoDoor) {
  in_server_and_client([&] {
    const int number = ::dup(door);
    ASSERT_EQ(call(number, "x").data, "x");
    ASSERT_EQ(::syscall(SYS_close, number), 0);
    let_knowledge_age();
    EXPECT_EQ(error_of(number, "x"), EBADF);
  });
}

TEST_F(DoorStale, DoorInfoNeverTellsOfTheDoorBefore) {
  in_server_and_client([&] {
    const UniqueFd number(::dup(door));
    ASSERT_EQ(id_of(number.get()), id_of(door));
    ASSERT_EQ(::syscall(SYS_dup3, other, number.get(), 0), number.get());
    let_knowledge_age();
    EXPECT_EQ(id_of(number.get()), id_of(other));
  });
}

TEST_F(DoorStale, ASocketUnderTheNumberOfADoorIsASocket) {
  const UniqueFd number(::dup(door));
  ASSERT_EQ(call(number.get(), "x").data, "x");
  const auto [socket, peer] = packet_socket_pair();
  ASSERT_EQ(::syscall(SYS_dup3, socket.get(), number.get(), 0), number.get());
  struct stat status {};
  ASSERT_EQ(::fstat(number.get(), &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
}

// Of a door that is revoked meanwhile, before a thread has come.
TEST_F(DoorStale, ANumberThatIsReusedDuringACallSaysNothingOfTheDoor) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    const UniqueFd mine(::door_create(echo, nullptr, 0));
    const UniqueFd another(::door_create(echo, nullptr, 0));
    const UniqueFd number(::dup(mine.get()));
    Caller caller(number.get(), "x");
    ASSERT_TRUE(caller.waits());
    ASSERT_EQ(::syscall(SYS_dup3, another.get(), number.get(), 0), number.get());
    ASSERT_EQ(::door_revoke(mine.get()), 0);
    EXPECT_EQ(caller.reply().error, EBADF);
  });
}

// Whatever has the number now, it is no door's.
TEST_F(DoorStale, ANumberThatIsAFilesByNowIsNoDoors) {
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  for (int i = 0; i < 50; ++i) {
    const UniqueFd number(::dup(door));
    ASSERT_EQ(id_of(number.get()), id_of(door));
    ASSERT_EQ(::syscall(SYS_dup3, file.get(), number.get(), O_CLOEXEC), number.get());
    ASSERT_EQ(error_of(number.get(), "x"), EBADF);
  }
  struct stat status {};
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_size, 0) << "nothing has been written to it";
}

// A first call waits for room in the socket of a server that does not run. What has the number by
// the time there is some gets nothing of it.
TEST_F(DoorStale, ANumberThatIsReusedWhileASessionIsOpenedGetsNothing) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  const ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  in_child([&] {
    const UniqueFd number(::dup(server.door()));
    ASSERT_EQ(::kill(server.pid(), SIGSTOP), 0);
    while (::send(number.get(), "full", 4, MSG_DONTWAIT | MSG_NOSIGNAL) == 4) continue;
    const auto [socket, peer] = packet_socket_pair();
    std::thread caller([&] { (void)error_of(number.get(), "x"); });
    std::this_thread::sleep_for(200ms);
    ASSERT_EQ(::syscall(SYS_dup3, socket.get(), number.get(), O_CLOEXEC), number.get());
    ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
    caller.join();
    char byte;
    EXPECT_EQ(::recv(peer.get(), &byte, 1, MSG_DONTWAIT), -1) << "the session of another";
    EXPECT_EQ(call(server.door(), "x").data, "x");
  });
}

TEST_F(DoorStale, WhatAVforkChildClosesIsNotForgottenHere) {
  in_child([&] {
    ASSERT_EQ(call(door, "x").data, "x");
    const std::string before = list_descriptors();
    for (int i = 0; i < 5; ++i) {
      const pid_t child = ::vfork();  // shares the memory, not the descriptors
      if (child == 0) {
        ::close(door);
        ::_exit(0);
      }
      ASSERT_EQ(::waitpid(child, nullptr, 0), child);
      EXPECT_EQ(call(door, "x").data, "x");
      EXPECT_EQ(list_descriptors(), before) << "the session has been given up, and another opened";
    }
  });
}

TEST_F(DoorStale, WhatAVforkChildClosesInOneGoIsNotForgottenHere) {
  in_child([&] {
    ASSERT_EQ(call(door, "x").data, "x");
    const std::string before = list_descriptors();
    const pid_t child = ::vfork();
    if (child == 0) {
      ::close_range(3, ~0U, 0);
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(call(door, "x").data, "x");
    EXPECT_EQ(list_descriptors(), before) << "the session has been given up, and another opened";
  });
}

TEST_F(DoorStale, WhatAVforkChildDuplicatesIsNotKnownHere) {
  in_child([&] {
    ASSERT_EQ(call(door, "x").data, "x");
    const std::string before = list_descriptors();
    const pid_t child = ::vfork();
    if (child == 0) {
      (void)::dup2(other, door);
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    EXPECT_EQ(call(door, "x").data, "x");
    EXPECT_EQ(list_descriptors(), before) << "the session has been given up, and another opened";
  });
}

// The library's own, which the program cannot close by their numbers.
TEST_F(DoorStale, WhatAVforkChildPutsInTheLibrarysPlaceIsNotThereHere) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  in_child([&] {
    ASSERT_EQ(call(door, "x").data, "x");
    std::vector<int> kept;
    for (int fd = 3; fd < 200; ++fd) {
      const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 200);
      if (copy < 0) continue;
      // What the program has goes, and comes back.
      if (::close(fd) != 0)
        kept.push_back(fd);
      else
        ASSERT_EQ(::dup2(copy, fd), fd);
      ::close(copy);
    }
    ASSERT_FALSE(kept.empty());
    const pid_t child = ::vfork();
    if (child == 0) {
      for (const int fd : kept) (void)::dup2(0, fd);
      ::_exit(0);
    }
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    for (const int fd : kept) EXPECT_EQ(ERROR_OF(::close(fd)), EBADF) << fd;
  });
}

std::set<int> listening_sockets() {
  std::set<int> all;
  for (int fd = 3; fd < 1024; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0)
      all.insert(fd);
  }
  return all;
}

// Whether the reactor listens for something there.
bool is_watched(int fd) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fdinfo")) {
    std::ifstream file(entry.path());
    for (std::string word; file >> word;) {
      int watched = -1;
      if (word == "tfd:" && file >> watched && watched == fd) return true;
    }
  }
  return false;
}

// An attachment has a second descriptor of its socket, which would keep the address.
TEST_F(DoorStale, TheProgramMayTakeTheNumbersOfAnAttachment) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  for (const bool listener : {true, false}) {
    const std::set<int> before = listening_sockets();
    ASSERT_EQ(::fattach(door, path.c_str()), 0);
    std::set<int> made = listening_sockets();
    std::erase_if(made, [&](int fd) { return before.contains(fd); });
    std::erase_if(made, [&](int fd) { return is_watched(fd) != listener; });
    ASSERT_EQ(made.size(), 1U);
    const int number = *made.begin();
    ASSERT_EQ(::dup2(STDIN_FILENO, number), number);
    EXPECT_TRUE(listener ? opens_as_file(path) : opens_as(path, id_of(door)));
    EXPECT_EQ(ERROR_OF(::fdetach(path.c_str())), listener ? EINVAL : 0);
    struct stat mine {};
    struct stat standard {};
    ASSERT_EQ(::fstat(number, &mine), 0);
    ASSERT_EQ(::fstat(STDIN_FILENO, &standard), 0);
    EXPECT_EQ(mine.st_ino, standard.st_ino) << "the number is the program's";
    ::close(number);
  }
  ASSERT_EQ(::fattach(door, path.c_str()), 0);
  EXPECT_TRUE(opens_as(path, id_of(door)));
}

}  // namespace
}  // namespace farcall::door::test
