// SPDX-License-Identifier: Apache-2.0
//
// How a server finds out how many descriptors refer to its door, where it has not seen them all.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <filesystem>
#include <iterator>

#include "door/attached.hpp"

namespace farcall::door::test {
namespace {

// Counts unreferenced calls; echoes others.
struct Told {
  std::atomic<int> times{0};

  void operator()(char* data, size_t size, door_desc_t*, uint_t) {
    if (static_cast<void*>(data) != DOOR_UNREF_DATA) ::door_return(data, size, nullptr, 0);
    ++times;
    ::door_return(nullptr, 0, nullptr, 0);
  }
  // Expects that so many have come, and that no more come.
  void expect(int calls) const {
    EXPECT_TRUE(eventually([&] { return times >= calls; })) << times << " instead of " << calls;
    std::this_thread::sleep_for(kGlance);
    EXPECT_EQ(times, calls);
  }
};

bool is_unref(int door) { return (info_of(door).di_attributes & DOOR_IS_UNREF) != 0; }

TEST(DoorReferences, ThatWereMadeUnseenEndItsBeingUnreferenced) {
  auto& told = lasting<Told>();
  const int door = make_door(told, DOOR_UNREF_MULTI);
  ::close(::dup(door));
  told.expect(1);
  EXPECT_TRUE(is_unref(door));
  const int seen_later = static_cast<int>(::syscall(SYS_dup, door));
  const int never_seen = static_cast<int>(::syscall(SYS_dup, door));
  EXPECT_EQ(call(seen_later, "x").data, "x");
  ::close(seen_later);
  EXPECT_TRUE(eventually([&] { return !is_unref(door); }));
  told.expect(1);
  EXPECT_EQ(call(never_seen, "x").data, "x");
  ::close(never_seen);
  told.expect(2);
  EXPECT_TRUE(is_unref(door));
}

TEST(DoorReferences, WhoHasTheLastOneIsToldSoByDoorInfo) {
  auto& told = lasting<Told>();
  const int door = make_door(told, DOOR_UNREF_MULTI);
  const Sandbox sandbox;
  const std::string path = sandbox.file("door");
  const Shared<Event> asked;
  const Shared<Event> closed;
  Child child([&] {
    EXPECT_FALSE(is_unref(door));
    asked->happens();
    ASSERT_TRUE(closed->wait());
    EXPECT_TRUE(is_unref(door));
    ASSERT_EQ(::fattach(door, path.c_str()), 0) << std::strerror(errno);
    EXPECT_FALSE(is_unref(door));
    ASSERT_EQ(::fdetach(path.c_str()), 0) << std::strerror(errno);
    EXPECT_TRUE(eventually([&] { return is_unref(door); }));
  });
  ASSERT_TRUE(asked->wait());
  ::close(door);
  told.expect(1);
  closed->happens();
  EXPECT_EQ(child.join(), 0);
  told.expect(2);
}

// There is none left to look with.
TEST(DoorReferences, AreCountedAlsoWhereTheTableIsFull) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  auto& told = lasting<Told>();
  const int door = make_door(told, DOOR_UNREF_MULTI);
  const UniqueFd second(::dup(door));
  const UniqueFd third(::dup(door));
  ASSERT_EQ(call(door, "x").data, "x");
  const FewDescriptors none;
  ASSERT_EQ(::dup2(STDIN_FILENO, second.get()), second.get());
  told.expect(0);
  ASSERT_EQ(::dup2(STDIN_FILENO, third.get()), third.get());
  told.expect(1);
}

// The last goes before anybody has counted that it was the last: a call in progress has it wait.
TEST(DoorReferences, ThatAllGoAtOnceAreToldOf) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  struct Slow {
    Event begun;
    Event go_on;
    Told told;
    void operator()(char* data, size_t size, door_desc_t* descriptors, uint_t count) {
      if (static_cast<void*>(data) == DOOR_UNREF_DATA) told(data, size, descriptors, count);
      begun.happens();
      go_on.await();
      answer("x");
    }
  };
  auto& slow = lasting<Slow>();
  const int door = make_door(slow, DOOR_UNREF);
  const int second = ::dup(door);
  Caller caller(door, "x");
  ASSERT_TRUE(slow.begun.wait());
  ::close(second);
  ::close(door);
  slow.told.expect(0);
  slow.go_on.happens();
  EXPECT_EQ(caller.reply().error, 0);
  slow.told.expect(1);
}

// The last goes when it has been counted, and no thread has come yet to tell of it.
TEST(DoorReferences, ThatAllGoBeforeThereIsAThreadAreToldOf) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    auto& told = lasting<Told>();
    const int door = make_door(told, DOOR_UNREF);
    ::close(::dup(door));
    ::close(door);
    told.expect(0);
    std::thread([] { ::door_return(nullptr, 0, nullptr, 0); }).detach();
    told.expect(1);
  });
}

std::ptrdiff_t descriptors_here() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all));
}

// Nobody can come any more to be told: a thread is bound by a descriptor, and there is none.
TEST(DoorReferences, OfPrivateDoorsThatNoThreadServesLeaveNothing) {
  if (over_module()) GTEST_SKIP() << "the module is here";
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    auto& told = lasting<Told>();
    for (const auto kind : {unsigned{DOOR_UNREF}, unsigned{DOOR_UNREF_MULTI}}) {
      ::close(make_door(told, DOOR_PRIVATE));  // what the first door of all brings stays
      const std::ptrdiff_t before = descriptors_here();
      for (int i = 0; i < 8; ++i) {
        const int door = make_door(told, DOOR_PRIVATE | kind);
        ::close(::dup(door));
        EXPECT_TRUE(eventually([&] { return is_unref(door); }));
        ::close(door);
      }
      EXPECT_TRUE(eventually([&] { return descriptors_here() <= before; }))
          << descriptors_here() << " instead of " << before;
    }
    told.expect(0);
  });
}

// Of a door that is revoked nobody is told.
TEST(DoorReferences, OfRevokedDoorsLeaveNothing) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  if (over_module()) GTEST_SKIP() << "the module is here";
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    auto& told = lasting<Told>();
    for (const auto kind : {0U, unsigned{DOOR_PRIVATE}}) {
      ::close(make_door(told, kind));
      const std::ptrdiff_t before = descriptors_here();
      for (int i = 0; i < 8; ++i) {
        const int door = make_door(told, kind | DOOR_UNREF);
        ::close(::dup(door));
        EXPECT_TRUE(eventually([&] { return is_unref(door); }));
        ASSERT_EQ(::door_revoke(door), 0) << std::strerror(errno);
      }
      EXPECT_TRUE(eventually([&] { return descriptors_here() <= before; }))
          << descriptors_here() << " instead of " << before;
    }
    std::thread([] { ::door_return(nullptr, 0, nullptr, 0); }).detach();
    told.expect(0);
  });
}

int most_events() {
  std::ifstream file("/proc/sys/fs/inotify/max_queued_events");
  int count = 0;
  file >> count;
  return count;
}

// What the kernel has to say of files is lost where a server does not listen for long.
TEST(DoorReferences, OfANameThatGoesUnnoticedEnd) {
  const int events = most_events();
  if (events == 0 || events > 200'000) GTEST_SKIP() << "too many events to lose some";
  const Sandbox sandbox;
  const std::string one = sandbox.file("one");
  const std::string other = sandbox.file("other");
  const std::string gone = sandbox.file("gone");
  const Shared<Event> ready;
  Child server([&] {
    auto& busy = lasting<Told>();
    auto& told = lasting<Told>();
    const int noisy = make_door(busy);
    const int door = make_door(told, DOOR_UNREF_MULTI);
    ASSERT_EQ(::fattach(noisy, one.c_str()), 0) << std::strerror(errno);
    ASSERT_EQ(::fattach(noisy, other.c_str()), 0) << std::strerror(errno);
    ASSERT_EQ(::fattach(door, gone.c_str()), 0) << std::strerror(errno);
    ready->happens();
    told.expect(1);
  });
  ASSERT_TRUE(ready->wait());
  ASSERT_TRUE(stop_process(server.pid()));
  // Two in turn: of equals in a row the kernel keeps one.
  for (int i = 0; i <= events; ++i)
    ASSERT_EQ(::chmod((i % 2 == 0 ? one : other).c_str(), 0644), 0) << std::strerror(errno);
  ASSERT_EQ(::unlink(gone.c_str()), 0);
  ASSERT_EQ(::kill(server.pid(), SIGCONT), 0);
  EXPECT_EQ(server.join(), 0);
}

}  // namespace
}  // namespace farcall::door::test
