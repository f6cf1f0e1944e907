// SPDX-License-Identifier: Apache-2.0
//
// The call that tells a server that a single descriptor refers to its door, where other processes
// have had descriptors: forked ones, and those that they were passed to.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "door/unref.hpp"

namespace farcall::door::test {
namespace {

TEST_F(DoorUnref, ComesWhenAForkedChildExits) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  for (int i = 1; i <= 3; ++i) {
    const Shared<Event> go;
    Child child([&] {
      EXPECT_EQ(call(door, "x").data, "x");
      ASSERT_TRUE(go->wait());
    });
    unref.expect(i - 1);
    go->happens();
    EXPECT_EQ(child.join(), 0);
    unref.expect(i);
  }
}

TEST_F(DoorUnref, ComesWhenAForkedChildIsKilled) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  Child child([] { ::pause(); });
  unref.expect(0);
  child.kill();
  unref.expect(1);
  EXPECT_EQ(call(door, "x").data, "x");
}

TEST_F(DoorUnref, ComesWhenAForkedChildClosesIts) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const Shared<Event> go;
  Child child([&] {
    ::close(door);
    ASSERT_TRUE(go->wait());
  });
  unref.expect(1);
  go->happens();
  EXPECT_EQ(child.join(), 0);
  unref.expect(1);
}

TEST_F(DoorUnref, AForkedChildsDescriptorsAreClosedOnExecAsBefore) {
  const int door = make_door(unref, DOOR_UNREF);
  const UniqueFd second(::dup(door));
  in_child([&] {
    EXPECT_EQ(::fcntl(door, F_GETFD), FD_CLOEXEC);
    EXPECT_EQ(::fcntl(second.get(), F_GETFD), 0);
  });
}

TEST_F(DoorUnref, WhatAVforkedChildClosesStaysOpenHere) {
  const int door = make_door(unref, DOOR_UNREF);
  const UniqueFd second(::dup(door));
  const pid_t child = ::vfork();  // shares the memory, not the descriptors
  if (child == 0) {
    ::close(second.get());
    ::_exit(0);
  }
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  unref.expect(0);
}

// What another thread may do when the library has got ready for a fork, and the kernel has not
// begun: close a duplicate, and open a file that gets its number.
constinit int number_given_away = -1;
constinit int file_that_gets_it = -1;
void give_number_away() {
  if (number_given_away >= 0) ::syscall(SYS_dup3, file_that_gets_it, number_given_away, 0);
}
// Whoever comes first of all is the last to be called before a fork.
[[gnu::no_sanitize("address", "thread", "undefined")]] void be_first() {
  ::pthread_atfork(&give_number_away, nullptr, nullptr);
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const kBeFirst)() = &be_first;

TEST_F(DoorUnref, ANumberThatIsAFilesByTheForkIsAFilesInTheChild) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const int second = ::dup(door);
  const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
  struct stat wanted {};
  ASSERT_EQ(::fstat(file.get(), &wanted), 0);
  file_that_gets_it = file.get();
  number_given_away = second;
  Child child([&] {
    struct stat status {};
    ASSERT_EQ(::fstat(second, &status), 0);
    EXPECT_EQ(status.st_ino, wanted.st_ino);
    EXPECT_EQ(call(door, "x").data, "x");
  });
  number_given_away = -1;
  EXPECT_EQ(child.join(), 0);
  ::close(second);
}

TEST_F(DoorUnref, WaitsForGrandchildren) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const Shared<Event> go;
  const Shared<Event> gone;
  Child child([&] {
    if (::fork() == 0) {
      (void)go->wait();
      ::_exit(0);
    }
  });
  EXPECT_EQ(child.join(), 0);
  unref.expect(0);
  go->happens();
  unref.expect(1);
  EXPECT_EQ(call(door, "x").data, "x");
}

TEST_F(DoorUnref, ComesWhenAClientClosesWhatWasPassed) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  give(door);
  unref.expect(0);
  tell("call");
  tell("drop");
  unref.expect(1);
  give(door);
  tell("drop");
  unref.expect(2);
}

TEST_F(DoorUnref, DoesNotComeForWhatWasNotPassed) {
  const int door = make_door(unref, DOOR_UNREF);
  const int picky = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(picky, DOOR_PARAM_DATA_MIN, 10), 0);
  EXPECT_EQ(error_of(picky, "short", {pass(door)}), ENOBUFS);
  EXPECT_EQ(error_of(::door_create(echo, nullptr, DOOR_REFUSE_DESC), "", {pass(door)}), ENOTSUP);
  ASSERT_EQ(::door_setparam(picky, DOOR_PARAM_DESC_MAX, 0), 0);
  EXPECT_EQ(error_of(picky, "long enough", {pass(door)}), ENFILE);
  EXPECT_EQ(error_of(other.door(), "", {pass(door), pass(-1)}), EINVAL);
  const int revoked = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(revoked));
  ASSERT_EQ(::door_revoke(revoked), 0);
  EXPECT_EQ(error_of(second.get(), "", {pass(door)}), EBADF);
  unref.expect(0);
  give(door);
  tell("drop");
  unref.expect(1);
}

TEST_F(DoorUnref, ComesWhenTheServerKeepsNoneAndOneClientDoes) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  give(door);
  ::close(door);
  unref.expect(1);
  tell("call");  // the door lasts while somebody holds it
}

TEST_F(DoorUnref, CountsEachDescriptorPassed) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  give(door);
  give(door);
  tell("drop");
  unref.expect(0);
  tell("drop");
  unref.expect(1);
}

TEST_F(DoorUnref, ADuplicateInTheClientKeepsItsReference) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  give(door);
  tell("duplicate");
  tell("drop");
  unref.expect(0);
  tell("drop");
  unref.expect(1);
}

TEST_F(DoorUnref, ComesWhenAClientWithAPassedDescriptorIsKilled) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  give(door);
  unref.expect(0);
  other.kill();
  unref.expect(1);
}

TEST_F(DoorUnref, ComesWhenAReplysDescriptorIsClosed) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  auto hand_out = [&](char*, size_t, door_desc_t*, uint_t) { return Answer({pass(door)}, ""); };
  const int giver = make_door(hand_out);
  const Reply here = call(giver);  // to this very process
  ASSERT_EQ(here.descriptors.size(), 1U);
  unref.expect(0);
  ::close(fd_of(here.descriptors[0]));
  unref.expect(1);
}

}  // namespace
}  // namespace farcall::door::test
