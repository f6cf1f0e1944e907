// SPDX-License-Identifier: Apache-2.0
//
// The call that tells a server that a single descriptor refers to its door.
#include "door/unref.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include "harness/sandbox.hpp"

namespace farcall::door::test {
namespace {

TEST_F(DoorUnref, IsNotToldOfANewDoor) {
  ASSERT_GE(make_door(unref, DOOR_UNREF_MULTI), 0);
  unref.expect(0);
}

TEST_F(DoorUnref, ComesWhenADuplicateIsClosed) {
  const int door = make_door(unref, DOOR_UNREF);
  const int second = ::dup(door);
  unref.expect(0);
  ::close(second);
  unref.expect(1);
}

TEST_F(DoorUnref, ANumberThatIsPutInItsOwnPlaceStaysADoors) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const int second = ::dup(door);
  ASSERT_EQ(::dup2(second, second), second);
  unref.expect(0);
  ::close(second);
  unref.expect(1);
}

TEST_F(DoorUnref, ComesWhenTheOriginalIsClosedAndADuplicateStays) {
  const int door = make_door(unref, DOOR_UNREF);
  const UniqueFd second(::dup(door));
  ::close(door);
  unref.expect(1);
  EXPECT_EQ(call(second.get(), "x").data, "x");
}

TEST_F(DoorUnref, ComesOnceWithUnref) {
  const int door = make_door(unref, DOOR_UNREF);
  for (int i = 0; i < 3; ++i) {
    ::close(::dup(door));
    unref.expect(1);
  }
}

TEST_F(DoorUnref, ComesEachTimeWithUnrefMulti) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  for (int i = 1; i <= 4; ++i) {
    ::close(::dup(door));
    unref.expect(i);
  }
}

TEST_F(DoorUnref, DoesNotComeUnasked) {
  const int door = make_door(unref, 0);
  ::close(::dup(door));
  in_child([&] { EXPECT_EQ(call(door, "x").data, "x"); });
  unref.expect(0);
}

TEST_F(DoorUnref, CountsEveryWayToDuplicate) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  int told = 0;
  auto use = [&](int fd) {
    ASSERT_GE(fd, 0);
    unref.expect(told);
    EXPECT_EQ(id_of(fd), id_of(door));
    ::close(fd);
    unref.expect(++told);
  };
  use(::fcntl(door, F_DUPFD, 50));
  use(::fcntl(door, F_DUPFD_CLOEXEC, 50));
  use(::dup2(door, 60));
  use(::dup3(door, 61, O_CLOEXEC));
}

TEST_F(DoorUnref, ComesWhenADuplicateIsOverwritten) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const UniqueFd second(::dup(door));
  ASSERT_EQ(::dup2(0, second.get()), second.get());
  unref.expect(1);
}

TEST_F(DoorUnref, ComesWhenADuplicateIsClosedThatCouldNotBeOverwritten) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const int second = ::dup(door);
  EXPECT_EQ(::dup2(-1, second), -1);
  EXPECT_EQ(::dup3(-1, second, 0), -1);
  unref.expect(0);
  EXPECT_EQ(::close(second), 0);
  unref.expect(1);
}

TEST_F(DoorUnref, ComesWhenManyAreClosedInOneGo) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  for (int told = 0; told < 3;) {
    const auto second = static_cast<unsigned>(::fcntl(door, F_DUPFD, 100));
    unref.expect(told);
    ASSERT_EQ(::close_range(second, second, 0), 0);
    unref.expect(++told);
  }
  // Not of one that is closed by the next exec.
  const UniqueFd second(::fcntl(door, F_DUPFD, 100));
  const auto number = static_cast<unsigned>(second.get());
  ASSERT_EQ(::close_range(number, number, CLOSE_RANGE_CLOEXEC), 0);
  unref.expect(3);
  EXPECT_EQ(call(second.get(), "x").data, "x");
}

// One that the library has not seen being made, because that was a system call of the program's.
TEST_F(DoorUnref, CountsADuplicateThatWasMadeUnseen) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const int second = static_cast<int>(::syscall(SYS_dup, door));
  ASSERT_GE(second, 0);
  give(second);
  ASSERT_EQ(::syscall(SYS_close, second), 0);
  unref.expect(0);
  tell("drop");
  unref.expect(1);
}

// What was closed unseen is found out when its number is looked at.
TEST_F(DoorUnref, ComesWhenADuplicateWasClosedUnseen) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const int second = ::dup(door);
  EXPECT_EQ(call(second, "x").data, "x");
  ASSERT_EQ(::syscall(SYS_close, second), 0);
  ASSERT_EQ(::syscall(SYS_dup3, STDIN_FILENO, second, O_CLOEXEC), second);
  EXPECT_EQ(error_of(second), EBADF);
  unref.expect(1);
  EXPECT_EQ(::syscall(SYS_close, second), 0);
}

TEST_F(DoorUnref, WaitsForTheLastButOne) {
  const int door = make_door(unref, DOOR_UNREF);
  const int first = ::dup(door);
  const int second = ::dup(door);
  ::close(first);
  unref.expect(0);
  ::close(second);
  unref.expect(1);
}

TEST_F(DoorUnref, AReleasedDescriptorMovesTheReference) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  const int second = ::dup(door);
  ASSERT_EQ(error_of(other.door(), "", {pass(second, DOOR_DESCRIPTOR | DOOR_RELEASE)}), 0);
  unref.expect(0);
  tell("drop");
  unref.expect(1);
}

TEST_F(DoorUnref, AnAttachedPathIsAReference) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  unref.expect(0);
  ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
  unref.expect(1);
}

TEST_F(DoorUnref, APathMayBeTheLastReference) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  ::close(door);
  unref.expect(1);
  const int opened = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(call(opened, "x").data, "x");
  unref.expect(1);
  ::close(opened);
  unref.expect(2);
}

TEST_F(DoorUnref, RemovingAnAttachedPathEndsItsReference) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  ASSERT_EQ(::unlink(path.c_str()), 0);
  unref.expect(1);
  EXPECT_EQ(call(door, "x").data, "x");
}

TEST_F(DoorUnref, CountsWhatWasOpenedByPath) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  const Shared<Event> opened;
  const Shared<Event> go;
  Child child([&] {
    ::close(door);
    const int mine = ::open(path.c_str(), O_RDWR);
    EXPECT_EQ(call(mine, "x").data, "x");
    opened->happens();
    ASSERT_TRUE(go->wait());
    EXPECT_EQ(call(mine, "x").data, "x");
  });
  ASSERT_TRUE(opened->wait());
  ASSERT_EQ(::fdetach(path.c_str()), 0);
  unref.expect(0);
  go->happens();
  EXPECT_EQ(child.join(), 0);
  unref.expect(1);
}

TEST_F(DoorUnref, IsReportedByDoorInfo) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  int second = ::dup(door);
  EXPECT_EQ(info_of(door).di_attributes & DOOR_IS_UNREF, 0U);
  ::close(second);
  unref.expect(1);
  in_child([&] { EXPECT_EQ(info_of(door).di_attributes & DOOR_IS_UNREF, 0U); });
  unref.expect(2);
  EXPECT_NE(info_of(door).di_attributes & DOOR_IS_UNREF, 0U);
  second = ::dup(door);
  EXPECT_EQ(info_of(door).di_attributes & DOOR_IS_UNREF, 0U);
}

TEST_F(DoorUnref, IsNoAttributeOnceItHasCome) {
  const int door = make_door(unref, DOOR_UNREF);
  int second = ::dup(door);
  in_server_and_client(
      [&] { EXPECT_NE(info_of(second).di_attributes & DOOR_UNREF, 0U) << "not yet"; });
  unref.expect(0);
  ::close(second);
  unref.expect(1);
  in_server_and_client([&] { EXPECT_EQ(info_of(door).di_attributes & DOOR_UNREF, 0U); });
}

// Who has had a descriptor before learns it, too.
TEST_F(DoorUnref, IsNoAttributeElsewhereOnceItHasCome) {
  const int door = make_door(unref, DOOR_UNREF);
  const Shared<Event> asked;
  const Shared<Event> told;
  Child child([&] {
    EXPECT_NE(info_of(door).di_attributes & DOOR_UNREF, 0U) << "not yet";
    asked->happens();
    ASSERT_TRUE(told->wait());
    EXPECT_EQ(info_of(door).di_attributes & DOOR_UNREF, 0U);
  });
  ASSERT_TRUE(asked->wait());
  ::close(door);
  unref.expect(1);
  told->happens();
  EXPECT_EQ(child.join(), 0);
}

TEST_F(DoorUnref, StaysAnAttributeWhereItComesEachTime) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  ::close(::dup(door));
  unref.expect(1);
  in_server_and_client([&] { EXPECT_NE(info_of(door).di_attributes & DOOR_UNREF_MULTI, 0U); });
}

TEST_F(DoorUnref, ComesToThePoolOfAPrivateDoor) {
  ::door_server_create([](door_info_t*) {});
  const int door = make_door(unref, DOOR_UNREF | DOOR_PRIVATE);
  ::close(::dup(door));
  unref.expect(0);
  std::thread([door] {
    EXPECT_EQ(::door_bind(door), 0);
    ::door_return(nullptr, 0, nullptr, 0);
  }).detach();
  unref.expect(1);
}

TEST_F(DoorUnref, AnAnswerToItClosesTheDescriptorsItReleases) {
  // Not on the stack: the thread that answers may return from it later than this test.
  static int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd out(ends[0]);
  static auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    door_desc_t end = pass(ends[1], DOOR_DESCRIPTOR | DOOR_RELEASE);
    ::door_return(nullptr, 0, &end, 1);
  };
  const int door = make_door(procedure, DOOR_UNREF);
  ::close(::dup(door));
  pollfd closed{.fd = out.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&closed, 1, static_cast<int>(kPatience.count())), 1);
}

TEST_F(DoorUnref, TheServerMayRevokeTheDoorWhenItComes) {
  // The pattern that it is made for.
  static Event revoked;
  static int door = -1;
  static auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    if (static_cast<void*>(data) == DOOR_UNREF_DATA) {
      EXPECT_EQ(::door_revoke(door), 0);
      revoked.happens();
      ::door_return(nullptr, 0, nullptr, 0);
    }
    ::door_return(data, size, nullptr, 0);
  };
  door = make_door(procedure, DOOR_UNREF);
  in_child([] { EXPECT_EQ(call(door, "x").data, "x"); });
  EXPECT_TRUE(revoked.wait());
  EXPECT_TRUE(eventually([] { return error_of(door) == EBADF; }));
}

TEST_F(DoorUnref, WaitsForCallsInProgress) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  for (const bool defers : {false, true}) {
    struct Slow {
      const bool defers;
      Event begun;
      Event go_on;
      Event told;
      void operator()(char* data, size_t, door_desc_t*, uint_t) {
        if (static_cast<void*>(data) == DOOR_UNREF_DATA) {
          told.happens();
          ::door_return(nullptr, 0, nullptr, 0);
        }
        if (defers) {
          door_deferred_t* later = nullptr;
          EXPECT_EQ(::door_defer(&later), 0);
          std::thread([this, later] {
            begun.happens();
            go_on.await();
            ::door_deferred_return(later, nullptr, 0, nullptr, 0);
          }).detach();
          ::door_return(nullptr, 0, nullptr, 0);
        }
        begun.happens();
        go_on.await();
        answer("x");
      }
    };
    auto& slow = *new Slow{.defers = defers, .begun = {}, .go_on = {}, .told = {}};
    const int door = make_door(slow, DOOR_UNREF);
    const int second = ::dup(door);
    Caller caller(door, "x");
    ASSERT_TRUE(slow.begun.wait());
    ::close(second);
    EXPECT_FALSE(slow.told.wait(kGlance));
    slow.go_on.happens();
    EXPECT_EQ(caller.reply().error, 0);
    EXPECT_TRUE(slow.told.wait());
  }
}

// A path is left, and nobody comes that way.
TEST_F(DoorUnref, DoesNotComeOfADoorThatIsRevoked) {
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const int door = make_door(unref, DOOR_UNREF);
  ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
  ASSERT_EQ(::door_revoke(door), 0);
  unref.expect(0);
}

// What the library duplicates to call it is not a reference.
TEST_F(DoorUnref, ACallOfItsOwnProcessIsNone) {
  const int door = make_door(unref, DOOR_UNREF_MULTI);
  for (int i = 0; i < 3; ++i) {
    // Each thread has a session of its own.
    std::thread([&] { EXPECT_EQ(call(door, "x").data, "x"); }).join();
    ASSERT_EQ(::setegid(::getegid()), 0);  // sessions of before are used no more
  }
  unref.expect(0);
  ::close(::dup(door));
  unref.expect(1);
  ::close(door);
}

}  // namespace
}  // namespace farcall::door::test
