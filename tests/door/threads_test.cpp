// SPDX-License-Identifier: Apache-2.0
//
// The threads that serve: who makes them, when, and how many. Most tests run in a child, whose
// doors are the first of their process.
#include <gtest/gtest.h>
#include <pthread.h>

#include <mutex>

#include "door/scoped_server.hpp"
#include "farcall/limits.h"

namespace farcall::door::test {
namespace {

struct Creation {
  pid_t thread;
  bool has_info;
  door_info_t info;
};
std::mutex lock;  // protects `creations`
std::vector<Creation> creations;
std::atomic<bool> decline{false};

void park() { ::door_return(nullptr, 0, nullptr, 0); }

void note_and_create(door_info_t* info) {
  const std::lock_guard guard(lock);
  creations.push_back({::gettid(), info != nullptr, info != nullptr ? *info : door_info_t{}});
  if (!decline) std::thread(park).detach();
}
std::size_t created() {
  const std::lock_guard guard(lock);
  return creations.size();
}
Creation creation(std::size_t i) {
  const std::lock_guard guard(lock);
  return creations.at(i);
}

// So many calls at once, that the server holds until all have come.
void crowd(int door, Gate& gate, int count) {
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < count; ++i) callers.push_back(std::make_unique<Caller>(door, "x"));
  for (int i = 0; i < count; ++i) EXPECT_TRUE(gate.entered.wait()) << i << " calls at once";
  for (int i = 0; i < count; ++i) gate.open.happens();
  for (auto& caller : callers) EXPECT_EQ(caller->reply().data, "x");
}

TEST(DoorThreads, CreateFunctionMayPermitCancellationWithoutHarmToTheCall) {
  in_child([] {
    ::door_server_create([](door_info_t*) {
      std::thread([] {
        ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, nullptr);
        park();
      }).detach();
      ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
    });
    auto tell_state = [](char*, size_t, door_desc_t*, uint_t) {
      int state = -1;
      ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
      answer_number(state);
    };
    const int door = make_door(tell_state);
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(call(door).number<int>(), PTHREAD_CANCEL_DISABLE) << "call " << i;
  });
}

TEST(DoorThreads, CreateFunctionRunsAtTheFirstSharedDoorAlone) {
  in_child([] {
    ::door_server_create(note_and_create);
    const int first = ::door_create(echo, nullptr, 0);
    ASSERT_GE(first, 0);
    ASSERT_EQ(created(), 1U);
    EXPECT_FALSE(creation(0).has_info);
    ASSERT_GE(::door_create(echo, nullptr, DOOR_REFUSE_DESC), 0);
    EXPECT_EQ(created(), 1U);
    ASSERT_EQ(::door_revoke(first), 0);
    ASSERT_GE(::door_create(echo, nullptr, 0), 0);
    EXPECT_EQ(created(), 1U);
  });
}

TEST(DoorThreads, CreateFunctionRunsAtEveryPrivateDoorWithItsInfo) {
  in_child([] {
    ::door_server_create(note_and_create);
    int cookie;
    for (std::size_t i = 0; i < 3; ++i) {
      const int door = ::door_create(echo, &cookie, DOOR_PRIVATE | DOOR_REFUSE_DESC);
      ASSERT_GE(door, 0);
      ASSERT_EQ(created(), i + 1);
      const Creation seen = creation(i);
      ASSERT_TRUE(seen.has_info);
      EXPECT_EQ(seen.thread, ::gettid());
      EXPECT_EQ(+seen.info.di_uniquifier, id_of(door));
      EXPECT_EQ(seen.info.di_target, ::getpid());
      EXPECT_EQ(+seen.info.di_proc, reinterpret_cast<door_ptr_t>(&echo));
      EXPECT_EQ(+seen.info.di_data, reinterpret_cast<door_ptr_t>(&cookie));
      EXPECT_EQ(seen.info.di_attributes,
                static_cast<uint_t>(DOOR_PRIVATE | DOOR_REFUSE_DESC | DOOR_LOCAL));
    }
    // The shared pool has not had its first thread yet.
    ASSERT_GE(::door_create(echo, nullptr, 0), 0);
    ASSERT_EQ(created(), 4U);
    EXPECT_FALSE(creation(3).has_info);
  });
}

TEST(DoorThreads, ServerCreateReturnsTheFunctionBefore) {
  in_child([] {
    door_server_func_t* usual = ::door_server_create(note_and_create);
    ASSERT_NE(usual, nullptr);
    EXPECT_EQ(::door_server_create(usual), &note_and_create);
    EXPECT_EQ(::door_server_create(note_and_create), usual);
    EXPECT_EQ(::door_server_create(nullptr), &note_and_create);  // the usual one again
    EXPECT_EQ(::door_server_create(usual), usual);
    EXPECT_EQ(call(::door_create(echo, nullptr, 0), "x").data, "x");
    EXPECT_EQ(created(), 0U);
  });
}

TEST(DoorThreads, AChildKeepsTheCreateFunction) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    ::door_server_create(note_and_create);
    in_child([] {
      const int door = ::door_create(echo, nullptr, 0);
      EXPECT_EQ(created(), 1U);
      EXPECT_EQ(call(door, "x").data, "x");
      ASSERT_GE(::door_create(echo, nullptr, DOOR_PRIVATE), 0);
      EXPECT_TRUE(creation(created() - 1).has_info);
      EXPECT_EQ(::door_server_create(nullptr), &note_and_create);
    });
    // What the child does is no business of its parent's.
    EXPECT_EQ(::door_server_create(note_and_create), &note_and_create);
  });
}

TEST(DoorThreads, CreateFunctionRunsOnTheServingThreadBeforeItsProcedure) {
  in_child([] {
    ::door_server_create(note_and_create);
    struct Seen {
      pid_t thread;
      std::size_t created;
    };
    auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
      answer_number(Seen{::gettid(), created()});
    };
    const int door = make_door(procedure);
    const auto seen = call(door).number<Seen>();
    // The only thread was taken, so a spare one had to be made.
    ASSERT_EQ(seen.created, 2U);
    EXPECT_EQ(creation(1).thread, seen.thread);
    EXPECT_FALSE(creation(1).has_info);
  });
}

TEST(DoorThreads, CallsOneAfterTheOtherNeedOneSpareThread) {
  in_child([] {
    ::door_server_create(note_and_create);
    const int door = ::door_create(echo, nullptr, 0);
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(call(door, "x").data, "x");
      ASSERT_TRUE(others_come_to_rest());  // the spare thread parks
    }
    for (int i = 0; i < 500; ++i) ASSERT_EQ(call(door, "x").data, "x");
    EXPECT_EQ(created(), 2U);
  });
}

TEST(DoorThreads, ThereIsOneThreadPerConcurrentCallAndNoneGoes) {
  in_child([] {
    ::door_server_create(note_and_create);
    Gate gate;
    const int door = make_door(gate);
    crowd(door, gate, 6);
    EXPECT_GE(created(), 6U);
    EXPECT_LE(created(), 7U);
    ASSERT_TRUE(others_come_to_rest());
    const std::size_t all = created();
    const std::size_t running = threads_of_program();
    crowd(door, gate, 6);
    EXPECT_LE(created(), 7U);
    ASSERT_TRUE(others_come_to_rest());
    EXPECT_EQ(threads_of_program() - running, created() - all);
  });
}

// Where they sleep they wait for it in reserve: more than the processors can run do not receive.
class DoorThreadsThat : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Wait, DoorThreadsThat, ::testing::Values("adaptive", "block"));

TEST_P(DoorThreadsThat, AreManyAndOfAnEarlierCrowdServeTheNext) {
  in_child([] {
    ::setenv("FARCALL_WAIT", GetParam(), 1);
    ::door_server_create(note_and_create);
    Gate gate;
    const int door = make_door(gate);
    constexpr int kCrowd = 40;
    for (int round = 0; round < 3; ++round) {
      crowd(door, gate, kCrowd);
      ASSERT_TRUE(others_come_to_rest());
      EXPECT_GE(created(), std::size_t{kCrowd});
      EXPECT_LE(created(), std::size_t{kCrowd} + 1) << "round " << round;
    }
    const int quick = ::door_create(echo, nullptr, 0);
    for (int i = 0; i < 200; ++i) ASSERT_EQ(call(quick, "x").data, "x");
  });
}

TEST(DoorThreads, TheDefaultPoolGrowsTheSameWay) {
  in_child([] {
    Gate gate;
    const int door = make_door(gate);
    EXPECT_EQ(call(::door_create(echo, nullptr, 0), "x").data, "x");
    const std::size_t before = threads_of_program();
    for (int round = 0; round < 2; ++round) {
      crowd(door, gate, 8);
      ASSERT_TRUE(others_come_to_rest());
      EXPECT_LE(threads_of_program(), before + 8) << "round " << round;
      EXPECT_GE(threads_of_program(), before + 6) << "round " << round;
    }
  });
}

TEST(DoorThreads, CallersWaitWhereTheCreateFunctionMakesNoThread) {
  in_child([] {
    ::door_server_create(note_and_create);
    Gate gate;
    const int door = make_door(gate);
    decline = true;
    Caller first(door, "first");
    ASSERT_TRUE(gate.entered.wait());
    Caller second(door, "second");
    EXPECT_TRUE(second.waits());
    EXPECT_FALSE(gate.entered.wait(1ms));
    gate.open.happens();
    EXPECT_EQ(first.reply().data, "first");
    ASSERT_TRUE(gate.entered.wait());
    gate.open.happens();
    EXPECT_EQ(second.reply().data, "second");
    EXPECT_GE(created(), 2U);  // it was asked
  });
}

TEST(DoorThreads, OneThatIsOnItsWayIsNotAskedForAgain) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    ::door_server_create(note_and_create);
    const int door = ::door_create(echo, nullptr, 0);
    ASSERT_TRUE(others_come_to_rest());
    decline = true;  // who asks cannot know
    constexpr int kCalls = 200;
    const std::int64_t begun = now_ns();
    for (int i = 0; i < kCalls; ++i) EXPECT_EQ(call(door, "x").data, "x");
    // For so long it is waited for.
    const std::int64_t periods = (now_ns() - begun) / 100'000'000 + 1;
    EXPECT_LE(static_cast<std::int64_t>(created()), 1 + 1 + periods);
  });
}

// Whoever calls a door may wait for a thread of the pool that it has left without one.
TEST(DoorThreads, OneThatDidNotComeIsAskedForAgainBeforeAProcedureCallsADoor) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    static std::atomic<int> asked{0};
    ::door_server_create([](door_info_t*) {
      if (++asked != 2) std::thread(park).detach();
    });
    static int door = -1;
    door = ::door_create(
        [](void*, char* data, size_t size, door_desc_t*, uint_t) {
          if (size > 1) {
            EXPECT_EQ(call(door, "x").data, "x");
          }
          ::door_return(data, size, nullptr, 0);
        },
        nullptr, 0);
    ASSERT_TRUE(others_come_to_rest());
    EXPECT_EQ(call(door, "x").data, "x");
    EXPECT_EQ(asked, 2);
    Caller caller(door, "nested");
    EXPECT_EQ(caller.interrupt_after(kPatience).data, "nested");
  });
}

// Of many calls that do so not each asks.
TEST(DoorThreads, OneIsAskedForOnceInAMillisecondAtMost) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const ScopedServer other([] { return ::door_create(echo, nullptr, 0); });
  in_child([&] {
    ::door_server_create(note_and_create);
    auto pass_on = [&](char*, size_t, door_desc_t*, uint_t) {
      for (int i = 0; i < 20; ++i) EXPECT_EQ(error_of(other.door(), "x"), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    };
    const int door = make_door(pass_on);
    ASSERT_TRUE(others_come_to_rest());
    decline = true;
    const std::int64_t begun = now_ns();
    for (int i = 0; i < 200; ++i) EXPECT_EQ(error_of(door), 0);
    const std::int64_t periods = (now_ns() - begun) / 1'000'000 + 1;
    EXPECT_LE(static_cast<std::int64_t>(created()), 1 + 1 + periods);
  });
}

// Where threads sleep at once, one that answers is taken for one that will soon be back.
TEST(DoorThreads, OneWhoseAnswerFailsIsNotBackSoon) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    ASSERT_EQ(::setenv("FARCALL_WAIT", "block", 1), 0);
    Gate gate;
    auto procedure = [&](char* data, size_t size, door_desc_t* descriptors, uint_t count) {
      EXPECT_EQ(ERROR_OF(::door_return(reinterpret_cast<char*>(8), 100, nullptr, 0)), EFAULT);
      gate(data, size, descriptors, count);
    };
    const int door = make_door(procedure);
    std::vector<std::unique_ptr<Caller>> callers;
    for (int i = 0; i < 4; ++i) {
      callers.push_back(std::make_unique<Caller>(door, "x"));
      EXPECT_TRUE(gate.entered.wait()) << "nobody serves the call " << i;
    }
    for (int i = 0; i < 4; ++i) gate.open.happens();
    for (auto& caller : callers) EXPECT_EQ(caller->reply().data, "x");
  });
}

TEST(DoorThreads, OnePoolServesAllSharedDoors) {
  in_child([] {
    ::door_server_create(note_and_create);
    std::vector<int> doors;
    for (int i = 0; i < 10; ++i) doors.push_back(::door_create(echo, nullptr, 0));
    for (const int door : doors) {
      EXPECT_EQ(call(door, "x").data, "x");
      ASSERT_TRUE(others_come_to_rest());
    }
    EXPECT_LE(created(), 2U);
  });
}

TEST(DoorThreads, DefaultThreadsAreDetachedWithCancellationDisabled) {
  struct State {
    int cancellation;
    int detached;
  };
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    State state{};
    ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state.cancellation);
    pthread_attr_t attributes;
    ::pthread_getattr_np(::pthread_self(), &attributes);
    ::pthread_attr_getdetachstate(&attributes, &state.detached);
    ::pthread_attr_destroy(&attributes);
    answer_number(state);
  };
  const auto state = call(make_door(procedure)).number<State>();
  EXPECT_EQ(state.cancellation, PTHREAD_CANCEL_DISABLE);
  EXPECT_EQ(state.detached, PTHREAD_CREATE_DETACHED);
}

TEST(DoorThreads, DefaultThreadsNeverBindSoAPrivateDoorKeepsItsCallersWaiting) {
  in_child([] {
    const int door = ::door_create(echo, nullptr, DOOR_PRIVATE);
    ASSERT_GE(door, 0);
    Caller caller(door, "x");
    EXPECT_TRUE(caller.waits());
    // The thread that was made for it serves shared doors.
    EXPECT_EQ(call(::door_create(echo, nullptr, 0), "y").data, "y");
    EXPECT_TRUE(caller.waits());
    std::thread([door] {
      EXPECT_EQ(::door_bind(door), 0);
      park();
    }).detach();
    EXPECT_EQ(caller.reply().data, "x");
  });
}

TEST(DoorThreads, AnyThreadJoinsTheSharedPool) {
  in_child([] {
    decline = true;
    ::door_server_create(note_and_create);
    auto procedure = [](char*, size_t, door_desc_t*, uint_t) { answer_number(::gettid()); };
    const int door = make_door(procedure);
    Caller caller(door);
    EXPECT_TRUE(caller.waits());
    std::promise<pid_t> mine;
    std::thread([&mine] {
      mine.set_value(::gettid());
      park();
    }).detach();
    EXPECT_EQ(caller.reply().number<pid_t>(), mine.get_future().get());
  });
}

TEST(DoorThreads, MainJoinsTheSharedPool) {
  ScopedServer server([] {
    decline = true;
    ::door_server_create(note_and_create);
    static auto procedure = [](char*, size_t, door_desc_t*, uint_t) { answer_number(::gettid()); };
    return make_door(procedure);
  });
  // Now one whose main thread never comes back.
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  Child child([&] {
    decline = true;
    ::door_server_create(note_and_create);
    auto procedure = [](char*, size_t, door_desc_t*, uint_t) { answer_number(::gettid()); };
    hand_over(ends[1], make_door(procedure));
    park();
    FAIL() << "door_return() returned: " << std::strerror(errno);
  });
  const UniqueFd door(take_over(ends[0]));
  EXPECT_EQ(call(door.get()).number<pid_t>(), child.pid());
  EXPECT_EQ(call(door.get()).number<pid_t>(), child.pid());
}

TEST(DoorThreads, AProcedureThatReturnsEndsItsThreadAndTheClientGetsEintr) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ELSEWHERE);
  auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
    if (size == sizeof(pid_t*)) {
      pid_t* thread;
      std::memcpy(&thread, data, sizeof thread);
      *thread = ::gettid();
      return;
    }
    ::door_return(data, size, nullptr, 0);
  };
  const int door = make_door(procedure);
  const Shared<pid_t> thread;
  in_server_and_client([&] {
    pid_t* place = thread.get();
    EXPECT_EQ(error_of(door, {reinterpret_cast<char*>(&place), sizeof place}), EINTR);
    EXPECT_EQ(call(door, "next").data, "next");
  });
  const std::string task = "/proc/self/task/" + std::to_string(*thread);
  EXPECT_TRUE(eventually([&] { return !std::filesystem::exists(task); }));
}

TEST(DoorThreads, AThreadThatHasLeftIsReplaced) {
  in_child([] {
    ::door_server_create(note_and_create);
    auto procedure = [](char* data, size_t size, door_desc_t*, uint_t) {
      if (size > 0) ::door_return(data, size, nullptr, 0);
    };
    const int door = make_door(procedure);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(error_of(door), EINTR);
      EXPECT_EQ(call(door, "x").data, "x");
    }
    EXPECT_GE(created(), 20U);
  });
}

TEST(DoorThreads, TheProcedureGetsCookieAndRequest) {
  static int cookie;
  const int door = ::door_create(
      [](void* data, char* request, size_t size, door_desc_t*, uint_t count) {
        EXPECT_EQ(data, &cookie);
        EXPECT_EQ(count, 0U);
        ::door_return(request, size, nullptr, 0);
      },
      &cookie, 0);
  EXPECT_EQ(call(door, "question").data, "question");
}

// A long request is taken for a while, and the only thread that there is takes it. This one is
// refused then, so that the thread asks for no other one to serve meanwhile.
TEST(DoorThreads, TheOnlyOneAsksForAnotherBeforeItTakesALongRequest) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  if (over_module()) GTEST_SKIP() << "the module is here";
  static const auto* const asked_for = new Shared<std::atomic<int>>;
  constexpr std::size_t kLong = std::size_t{5} << 20;
  const ScopedServer server([&] {
    farcall_limits few{};
    few.size = sizeof few;
    few.bytes_per_user = kLong + kLong / 2;
    EXPECT_EQ(::door_limits_set(&few), 0);
    ::door_server_create([](door_info_t*) {
      if (++**asked_for == 1) std::thread([] { ::door_return(nullptr, 0, nullptr, 0); }).detach();
    });
    const int door = ::door_create(echo, nullptr, 0);
    EXPECT_TRUE(others_come_to_rest());
    return door;
  });
  EXPECT_EQ(**asked_for, 1);
  in_child([&] {
    ASSERT_TRUE(become(kNobody));
    EXPECT_EQ(error_of(server.door(), std::string(kLong, 'x')), E2BIG);
  });
  EXPECT_EQ(**asked_for, 2);
}

}  // namespace
}  // namespace farcall::door::test
