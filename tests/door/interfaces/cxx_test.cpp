// SPDX-License-Identifier: Apache-2.0
//
// farcall/door.hpp: doors with owners.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <thread>

#include "farcall/door.hpp"
#include "harness/child.hpp"
#include "harness/error_of.hpp"
#include "harness/sandbox.hpp"

namespace farcall {
namespace {

using test::error_of;

void echo(DoorRequest& request, DoorReply& reply) { reply.write(request.data()); }

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

class Pipe {
 public:
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw DoorError(errno, "pipe2");
    read_end.reset(ends[0]);
    write_end.reset(ends[1]);
  }
  std::string read() {
    char text[100];
    const ssize_t size = ::read(read_end.get(), text, sizeof text);
    return {text, size < 0 ? 0 : static_cast<std::size_t>(size)};
  }
  DoorDescriptor read_end;
  DoorDescriptor write_end;
};

class Directory {
 public:
  [[nodiscard]] std::string file(const std::string& name) const {
    return sandbox_.path() + "/" + name;
  }

 private:
  test::Sandbox sandbox_;
};

int exit_code_of_child(const std::function<bool()>& body) {
  const pid_t child = test::fork_while_others_rest();
  if (child == 0) {
    ::alarm(20);
    bool good = false;
    try {
      good = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(CxxDoor, ACallReturnsWhatTheProcedureWrites) {
  const Door door = Door::create([](DoorRequest& request, DoorReply& reply) {
    reply.write("<");
    reply.write(request.data());
    reply.write(">");
  });
  EXPECT_EQ(door.call("abc").text(), "<abc>");
  EXPECT_EQ(door.call("").text(), "<>");
}

TEST(CxxDoor, AChildCallsItsParent) {
  const Door door = Door::create(echo);
  EXPECT_EQ(exit_code_of_child([&] { return door.call("across").text() == "across"; }), 0);
}

TEST(CxxDoor, ResultsOfAnySizeKeepTheirDataWhenTheyMove) {
  const Door door = Door::create(echo);
  for (const std::size_t size : {0U, 1U, 512U, 513U, 100'000U, 3'000'000U}) {
    const std::string request(size, 'x');
    DoorResult first = door.call(request);
    EXPECT_EQ(first.text(), request);
    DoorResult second(std::move(first));
    EXPECT_EQ(second.text(), request);
    first = std::move(second);
    EXPECT_EQ(first.text(), request);
  }
}

TEST(CxxDoor, ReplyGoesIntoTheRoomThatIsGiven) {
  const Door door = Door::create(echo);
  std::vector<std::byte> room(4096);
  const std::string request(4096, 'y');
  const DoorResult result = door.call(request, {}, room);
  EXPECT_EQ(result.data().data(), room.data());
  EXPECT_EQ(result.text(), request);
}

TEST(CxxDoor, ExtendedRepliesAreFilledInPlace) {
  const Door door = Door::create([](DoorRequest&, DoorReply& reply) {
    reply.write("ab");
    for (std::byte& byte : reply.extend(3)) byte = std::byte{'c'};
  });
  EXPECT_EQ(door.call("").text(), "abccc");
}

TEST(CxxDoor, DescriptorsOfARequestAreClosedWithIt) {
  std::atomic<int> received{-1};
  const Door door = Door::create([&](DoorRequest& request, DoorReply&) {
    ASSERT_EQ(request.descriptors().size(), 1U);
    received = request.descriptors()[0].get();
    EXPECT_EQ(::write(received, "hi", 2), 2);
  });
  Pipe pipe;
  door.call("", std::array{pipe.write_end.get()});
  EXPECT_TRUE(is_open(pipe.write_end.get()));
  EXPECT_EQ(pipe.read(), "hi");
  EXPECT_FALSE(is_open(received));
}

TEST(CxxDoor, DescriptorsOfAReplyAreGivenAwayOrShared) {
  Pipe pipe;
  const int shared = pipe.read_end.get();
  const int given = pipe.write_end.get();
  const Door door = Door::create([&](DoorRequest&, DoorReply& reply) {
    reply.pass(shared);
    reply.give(std::move(pipe.write_end));
    reply.write("two");
  });
  DoorResult result = door.call("");
  EXPECT_EQ(result.text(), "two");
  ASSERT_EQ(result.descriptors().size(), 2U);
  EXPECT_EQ(::write(result.descriptors()[1].get(), "x", 1), 1);
  EXPECT_EQ(pipe.read(), "x");
  EXPECT_TRUE(is_open(shared));
  EXPECT_NE(result.descriptors()[1].get(), given);
  // The last writing end is the client's, so closing it ends the pipe.
  result.descriptors().clear();
  EXPECT_EQ(pipe.read(), "");
}

TEST(CxxDoor, AnExceptionEndsTheCallAndNotTheServer) {
  const Door door = Door::create([](DoorRequest& request, DoorReply& reply) {
    if (request.text() == "bad") throw std::runtime_error("bad");
    reply.write("good");
  });
  EXPECT_EQ(error_of([&] { door.call("bad"); }), EINTR);
  EXPECT_EQ(door.call("fine").text(), "good");
  EXPECT_EQ(error_of([&] { door.call("bad"); }), EINTR);
  EXPECT_EQ(door.call("fine").text(), "good");
}

TEST(CxxDoor, ADoorThatGoesTakesItsProcedureAlong) {
  const auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = held;
  int copy = -1;
  {
    const Door door = Door::create(
        [kept = held](DoorRequest&, DoorReply& reply) { reply.write(std::to_string(*kept)); });
    copy = ::dup(door.get());
    EXPECT_EQ(door.call("").text(), "1");
  }
  const Door stale = Door::adopt(copy);
  EXPECT_EQ(error_of([&] { stale.call(""); }), EBADF);
  // The thread that served may hold it a moment longer.
  for (int i = 0; i < 1000 && held.use_count() > 1; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_FALSE(watched.expired());
}

TEST(CxxDoor, WhatARevokedDoorAnswersTellsTheWayOut) {
  Door door = Door::create(echo);
  const Door other = Door::adopt(::dup(door.get()));
  door.revoke();
  EXPECT_FALSE(door);
  try {
    other.call("");
    FAIL() << "a revoked door was called";
  } catch (const DoorError& error) {
    EXPECT_EQ(error.code().value(), EBADF);
    EXPECT_NE(std::string(error.what()).find("open it again"), std::string::npos) << error.what();
  }
}

TEST(CxxDoor, AChildThatDropsItsCopyRevokesNothing) {
  Door door = Door::create(echo);
  EXPECT_EQ(exit_code_of_child([&] {
              const Door gone = std::move(door);
              return true;
            }),
            0);
  EXPECT_EQ(exit_code_of_child([&] {
              door = Door();
              return true;
            }),
            0);
  EXPECT_EQ(door.call("still").text(), "still");
}

TEST(CxxDoor, ProceduresServeOneAnother) {
  const Door inner = Door::create(echo);
  const Door outer = Door::create([&](DoorRequest& request, DoorReply& reply) {
    reply.write(inner.call(request.data()).data());
    reply.write("!");
  });
  EXPECT_EQ(outer.call("nested").text(), "nested!");
}

TEST(CxxDoor, LimitsAreReadAndSet) {
  const Door door = Door::create(echo);
  EXPECT_EQ(door.limit(DOOR_PARAM_DATA_MIN), 0U);
  door.set_limit(DOOR_PARAM_DATA_MAX, 4);
  EXPECT_EQ(door.limit(DOOR_PARAM_DATA_MAX), 4U);
  EXPECT_EQ(error_of([&] { door.call("12345"); }), ENOBUFS);
  EXPECT_EQ(door.call("1234").text(), "1234");
  EXPECT_EQ(error_of([&] { door.set_limit(99, 1); }), EINVAL);
}

TEST(CxxDoor, InfoTellsOfTheServer) {
  const Door door = Door::create(echo, {.attributes = DOOR_REFUSE_DESC});
  EXPECT_EQ(door.info().di_target, ::getpid());
  EXPECT_NE(door.info().di_attributes & DOOR_REFUSE_DESC, 0U);
  EXPECT_EQ(error_of([] { static_cast<void>(Door().info()); }), EBADF);
}

TEST(CxxDoor, TheProcedureKnowsItsCaller) {
  const Door door = Door::create([](DoorRequest&, DoorReply& reply) {
    const DoorCaller caller = DoorRequest::caller();
    reply.write(std::to_string(caller.pid) + " " + std::to_string(caller.effective_user));
  });
  EXPECT_EQ(exit_code_of_child([&] {
              return door.call("").text() ==
                     std::to_string(::getpid()) + " " + std::to_string(::geteuid());
            }),
            0);
}

TEST(CxxDoor, APrivateDoorHasItsThreads) {
  std::atomic<int> inside{0};
  const Door door = Door::create(
      [&](DoorRequest&, DoorReply&) {
        // Each waits until the other is here, too.
        ++inside;
        for (int i = 0; i < 1000 && inside < 2; ++i)
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
      },
      {.threads = 2});
  EXPECT_NE(door.info().di_attributes & DOOR_PRIVATE, 0U);
  std::thread other([&] { door.call(""); });
  door.call("");
  other.join();
  EXPECT_EQ(inside, 2);
  EXPECT_EQ(error_of([] { Door::create(echo, {.threads = -1}); }), EINVAL);
}

TEST(CxxDoor, TheLastReferenceIsToldOf) {
  std::atomic<int> told{0};
  std::atomic<int> called{0};
  const Door door = Door::create(
      [&](DoorRequest& request, DoorReply&) {
        request.unreferenced() ? ++told : ++called;
        if (request.unreferenced()) {
          EXPECT_TRUE(request.data().empty());
        }
      },
      {.attributes = DOOR_UNREF});
  EXPECT_EQ(exit_code_of_child([&] { return door.call("").text().empty(); }), 0);
  for (int i = 0; i < 1000 && told == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(told, 1);
  EXPECT_EQ(called, 1);
}

TEST(CxxDoor, APingGetsAnAnswerWithoutData) {
  const Door door =
      Door::create([](DoorRequest&, DoorReply& reply) { reply.write("more than a ping wants"); });
  EXPECT_EQ(::door_call(door.get(), nullptr), 0);
  EXPECT_EQ(door.call("").text(), "more than a ping wants");
}

TEST(CxxDoor, WrongAttributesAreRefused) {
  EXPECT_EQ(error_of([] { Door::create(echo, {.attributes = 0x8000}); }), EINVAL);
}

TEST(CxxAttachedDoor, APathIsMadeAndRemoved) {
  const Directory directory;
  const std::string path = directory.file("door");
  const Door door = Door::create(echo);
  {
    const AttachedDoor name(door, path);
    EXPECT_EQ(Door::open(path).call("hello").text(), "hello");
    EXPECT_EQ(exit_code_of_child([&] { return Door::open(path).call("child").text() == "child"; }),
              0);
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_TRUE(S_ISDOOR(status.st_mode));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(CxxAttachedDoor, AFileThatWasThereStays) {
  const Directory directory;
  const std::string path = directory.file("door");
  std::ofstream(path) << "text";
  const Door door = Door::create(echo);
  AttachedDoor name(door, path);
  AttachedDoor moved(std::move(name));
  EXPECT_EQ(moved.path(), path);
  EXPECT_EQ(error_of([&] { AttachedDoor(door, path); }), EBUSY);
  moved.detach();
  EXPECT_EQ(std::filesystem::file_size(path), 4U);
  EXPECT_EQ(error_of([&] { Door::open(path); }), EBADF);
  AttachedDoor again(door, path);
  EXPECT_EQ(Door::open(path).call("again").text(), "again");
  ASSERT_EQ(::fdetach(path.c_str()), 0);
  EXPECT_EQ(error_of([&] { again.detach(); }), EINVAL);
}

TEST(CxxAttachedDoor, AFileThatTookThePlaceOfOursIsLeftAlone) {
  const Directory directory;
  const std::string path = directory.file("door");
  const Door door = Door::create(echo);
  AttachedDoor name(door, path);
  ASSERT_EQ(::rename(path.c_str(), directory.file("moved").c_str()), 0);
  const Door other = Door::create([](DoorRequest&, DoorReply& reply) { reply.write("other"); });
  const AttachedDoor theirs(other, path);
  EXPECT_EQ(error_of([&] { name.detach(); }), ENOENT);
  EXPECT_EQ(Door::open(path).call("").text(), "other");
}

TEST(CxxAttachedDoor, AChildLeavesTheNameToItsParent) {
  const Directory directory;
  const std::string path = directory.file("door");
  const Door door = Door::create(echo);
  auto name = std::make_unique<AttachedDoor>(door, path);
  EXPECT_EQ(exit_code_of_child([&] {
              name.reset();
              return true;
            }),
            0);
  EXPECT_EQ(Door::open(path).call("here").text(), "here");
}

TEST(CxxAttachedDoor, WhatCannotHaveADoorIsRefused) {
  const Directory directory;
  const Door door = Door::create(echo);
  EXPECT_EQ(error_of([&] { AttachedDoor(door, "/proc/nothing/here"); }), ENOENT);
  EXPECT_EQ(error_of([&] { AttachedDoor(door, directory.file(".")); }), EINVAL);
  EXPECT_EQ(error_of([&] { Door::open(directory.file("none")); }), ENOENT);
}

}  // namespace
}  // namespace farcall
