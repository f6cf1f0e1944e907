// SPDX-License-Identifier: Apache-2.0
//
// door_xcreate(): private pools with threads made ahead and on demand.
#include <gtest/gtest.h>
#include <pthread.h>

#include <mutex>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

// What a create function was asked, and what it is to answer.
struct Maker {
  std::mutex lock;
  std::vector<pid_t> asked;  // the threads that asked
  std::vector<door_info_t> infos;
  int answers_one = INT_MAX;  // so many times, before it answers with `then`
  int then = 0;
  std::atomic<int> set_up{0};
  std::atomic<int> bound{0};

  std::size_t count() {
    const std::lock_guard guard(lock);
    return asked.size();
  }
};

struct Start {
  void* (*function)(void*);
  void* argument;
};

int make_thread(door_info_t* info, void* (*startf)(void*), void* argument, void* cookie) {
  auto& maker = *static_cast<Maker*>(cookie);
  const std::lock_guard guard(maker.lock);
  maker.asked.push_back(::gettid());
  if (info != nullptr) maker.infos.push_back(*info);
  if (maker.answers_one-- <= 0) return maker.then;
  std::thread([startf, argument] { startf(argument); }).detach();
  return 1;
}

void note_set_up(void* cookie) {
  auto& maker = *static_cast<Maker*>(cookie);
  door_info_t info;
  if (::door_info(DOOR_QUERY, &info) == 0) ++maker.bound;  // not bound yet
  ++maker.set_up;
}

TEST(DoorXcreate, RefusesNoThreadsAndNoCreateFunction) {
  Maker maker;
  for (const int count : {0, -1, INT_MIN})
    EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, count)),
              EINVAL);
  EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, nullptr, nullptr, &maker, 1)), EINVAL);
  EXPECT_EQ(maker.count(), 0U);
}

TEST(DoorXcreate, RefusesUnknownAttributes) {
  Maker maker;
  for (const uint_t attributes : {0x04U, 0x08U, 0x20U, 0x200U, 0x400U, 0x10000U,
                                  static_cast<uint_t>(DOOR_UNREF | DOOR_UNREF_MULTI)})
    EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, attributes, make_thread, nullptr, &maker, 1)),
              EINVAL)
        << attributes;
}

TEST(DoorXcreate, MakesAPrivateDoorWithDepletionCallback) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const int door = ::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(::fcntl(door, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(info_of(door).di_attributes,
            static_cast<uint_t>(DOOR_PRIVATE | DOOR_DEPLETION_CB | DOOR_LOCAL));
  in_server_and_client([&] { EXPECT_EQ(call(door, "x").data, "x"); });
}

TEST(DoorXcreate, ReportsNoDepletionCallback) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const int door = ::door_xcreate(echo, nullptr, DOOR_NO_DEPLETION_CB | DOOR_PRIVATE, make_thread,
                                  nullptr, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(info_of(door).di_attributes & (DOOR_PRIVATE | DOOR_DEPLETION_CB),
            static_cast<uint_t>(DOOR_PRIVATE));
}

TEST(DoorXcreate, AsksForEachThreadOnceWithTheDoorsInfo) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  int cookie;
  const int door = ::door_xcreate(echo, &cookie, DOOR_REFUSE_DESC, make_thread, nullptr, &maker, 4);
  ASSERT_GE(door, 0) << std::strerror(errno);
  ASSERT_EQ(maker.count(), 4U);
  ASSERT_EQ(maker.infos.size(), 4U);
  for (const pid_t thread : maker.asked) EXPECT_EQ(thread, ::gettid());
  for (const door_info_t& info : maker.infos) {
    EXPECT_EQ(info.di_target, ::getpid());
    EXPECT_EQ(+info.di_uniquifier, id_of(door));
    EXPECT_EQ(+info.di_proc, reinterpret_cast<door_ptr_t>(&echo));
    EXPECT_EQ(+info.di_data, reinterpret_cast<door_ptr_t>(&cookie));
    EXPECT_EQ(info.di_attributes, info_of(door).di_attributes);
  }
}

TEST(DoorXcreate, AllThreadsAreSetUpBeforeItReturns) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const int door = ::door_xcreate(echo, nullptr, 0, make_thread, note_set_up, &maker, 5);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(maker.set_up, 5);
  EXPECT_EQ(maker.bound, 0) << "set up comes before binding";
}

TEST(DoorXcreate, AllThreadsServeAtOnce) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  static Gate gate;
  const int door = ::door_xcreate(procedure_of<Gate>, &gate, DOOR_NO_DEPLETION_CB, make_thread,
                                  nullptr, &maker, 3);
  ASSERT_GE(door, 0) << std::strerror(errno);
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < 3; ++i) callers.push_back(std::make_unique<Caller>(door, "x"));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(gate.entered.wait());
  for (int i = 0; i < 3; ++i) gate.open.happens();
  for (auto& caller : callers) EXPECT_EQ(caller->reply().data, "x");
}

TEST(DoorXcreate, ServingThreadsAreBoundToTheDoor) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  static auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    door_info_t info{};
    ::door_info(DOOR_QUERY, &info);
    answer_number(info.di_uniquifier);
  };
  const int door = ::door_xcreate(procedure_of<decltype(procedure)>, &procedure, 0, make_thread,
                                  nullptr, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(call(door).number<door_id_t>(), id_of(door));
}

// Whether and when a thread can be cancelled.
struct Cancellation {
  int state;
  int type;
};
void tell_cancellation(void*, char*, size_t, door_desc_t*, uint_t) {
  Cancellation now;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &now.state);
  ::pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &now.type);
  ::pthread_setcancelstate(now.state, nullptr);
  answer_number(now);
}

TEST(DoorXcreate, WithoutSetUpCancellationIsDisabledAndDeferred) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const int door = ::door_xcreate(tell_cancellation, nullptr, 0, make_thread, nullptr, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  const auto seen = call(door).number<Cancellation>();
  EXPECT_EQ(seen.state, PTHREAD_CANCEL_DISABLE);
  EXPECT_EQ(seen.type, PTHREAD_CANCEL_DEFERRED);
}

TEST(DoorXcreate, WithoutSetUpCancellationIsDeferredThoughItWasNot) {
  const auto create = [](door_info_t*, void* (*startf)(void*), void* argument, void*) {
    std::thread([startf, argument] {
      ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
      startf(argument);
    }).detach();
    return 1;
  };
  const int door = ::door_xcreate(tell_cancellation, nullptr, 0, create, nullptr, nullptr, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(call(door).number<Cancellation>().type, PTHREAD_CANCEL_DEFERRED);
}

TEST(DoorXcreate, ThreadsThatAreSlowToBindAreWaitedFor) {
  static std::atomic<int> set_up{0};
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const auto slowly = [](void*) {
    std::this_thread::sleep_for(kGlance);
    ++set_up;
  };
  const int door = ::door_xcreate(echo, nullptr, 0, make_thread, slowly, &maker, 3);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(set_up, 3);
}

TEST(DoorXcreate, SetUpDecidesAboutCancellation) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const int door = ::door_xcreate(
      tell_cancellation, nullptr, 0, make_thread,
      [](void* cookie) {
        EXPECT_EQ(cookie, &maker);
        ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
      },
      &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  EXPECT_EQ(call(door).number<Cancellation>().state, PTHREAD_CANCEL_ENABLE);
}

TEST(DoorXcreate, DecliningAThreadAtCreationIsEinval) {
  for (const int first : {0, 1, 2}) {
    auto& maker = lasting<Maker>();  // its threads may last
    maker.answers_one = first;
    EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, 3)), EINVAL);
    EXPECT_EQ(maker.count(), static_cast<std::size_t>(first) + 1) << "asks on after a refusal";
  }
}

TEST(DoorXcreate, FailingToMakeAThreadAtCreationIsEpipe) {
  for (const int first : {0, 1, 2}) {
    auto& maker = lasting<Maker>();
    maker.answers_one = first;
    maker.then = -1;
    EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, 3)), EPIPE);
  }
}

TEST(DoorXcreate, LeaksNoDescriptorWhenItFails) {
  ASSERT_GE(::door_create(echo, nullptr, 0), 0);
  auto fail = [] {
    auto& maker = lasting<Maker>();
    maker.answers_one = 0;
    EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, 2)), EINVAL);
  };
  fail();
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) fail();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; })) << open_descriptors();
}

TEST(DoorXcreate, AsksForAThreadWhenNoneIsLeftToServe) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  static Gate gate;
  const int door =
      ::door_xcreate(procedure_of<Gate>, &gate, 0, make_thread, note_set_up, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  ASSERT_EQ(maker.count(), 1U);
  std::vector<std::unique_ptr<Caller>> callers;
  for (std::size_t i = 0; i < 4; ++i) {
    callers.push_back(std::make_unique<Caller>(door, "x"));
    ASSERT_TRUE(gate.entered.wait());
    EXPECT_EQ(maker.count(), i + 2) << "one spare thread";
    // The next call finds it parked.
    EXPECT_TRUE(eventually([&] { return maker.set_up == static_cast<int>(i) + 2; }));
    std::this_thread::sleep_for(5ms);
  }
  for (std::size_t i = 1; i < maker.asked.size(); ++i)
    EXPECT_NE(maker.asked[i], ::gettid()) << "depletion is told to the serving thread";
  for (std::size_t i = 0; i < 4; ++i) gate.open.happens();
  for (auto& caller : callers) EXPECT_EQ(caller->reply().data, "x");
}

TEST(DoorXcreate, DecliningAThreadAtDepletionIsAccepted) {
  for (const int refusal : {0, -1}) {
    auto& maker = lasting<Maker>();
    auto& gate = lasting<Gate>();
    maker.answers_one = 1;
    maker.then = refusal;
    const int door = ::door_xcreate(procedure_of<Gate>, &gate, 0, make_thread, nullptr, &maker, 1);
    ASSERT_GE(door, 0) << std::strerror(errno);
    Caller first(door, "first");
    ASSERT_TRUE(gate.entered.wait());
    EXPECT_EQ(maker.count(), 2U);
    Caller second(door, "second");
    EXPECT_TRUE(second.waits());
    gate.open.happens();
    EXPECT_EQ(first.reply().data, "first");
    ASSERT_TRUE(gate.entered.wait());
    gate.open.happens();
    EXPECT_EQ(second.reply().data, "second");
  }
}

TEST(DoorXcreate, ThreadsThatWereDeclinedAreAskedForAgainWithTheNextCall) {
  static Maker& maker = *new Maker;
  maker.answers_one = 1;
  const int door = ::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  for (std::size_t calls = 1; calls <= 3; ++calls) {
    EXPECT_EQ(call(door, "x").data, "x");
    EXPECT_EQ(maker.count(), 1 + calls);
  }
}

TEST(DoorXcreate, ThreadsOfADoorThatWasNotMadeEnd) {
  struct Joinable {
    std::atomic<int> asked{0};
    pthread_t thread{};
  };
  static Joinable made;
  const auto create = [](door_info_t*, void* (*startf)(void*), void* argument, void*) {
    if (made.asked++ > 0) return 0;
    return ::pthread_create(&made.thread, nullptr, startf, argument) == 0 ? 1 : -1;
  };
  EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, create, nullptr, nullptr, 2)), EINVAL);
  timespec end{};
  ::clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 10;
  EXPECT_EQ(::pthread_timedjoin_np(made.thread, nullptr, &end), 0);
}

// A create function that fails after it has made the thread all the same.
TEST(DoorXcreate, SetUpThatEndsItsThreadIsAFailure) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  const auto end_second = [](void* cookie) {
    if (++static_cast<Maker*>(cookie)->set_up == 2) ::pthread_exit(nullptr);
  };
  EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, make_thread, end_second, &maker, 3)), EPIPE);
  EXPECT_EQ(maker.count(), 3U);
}

// Set-up is where a thread says how it can be cancelled; it ends alone.
TEST(DoorXcreate, AThreadMayBeCancelledAtAnyMomentWhileItWaitsForTheOthers) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  in_child([] {
    static std::vector<pthread_t> threads;
    constexpr auto kMake = [](door_info_t*, void* (*startf)(void*), void* argument, void*) {
      pthread_t made{};
      if (::pthread_create(&made, nullptr, startf, argument) != 0) return -1;
      threads.push_back(made);
      if (threads.size() == 2) ::pthread_cancel(threads.front());
      EXPECT_TRUE(others_come_to_rest());
      return 1;
    };
    constexpr auto kPermit = [](void*) {
      ::pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
      ::pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, nullptr);
    };
    const int door = ::door_xcreate(echo, nullptr, 0, kMake, kPermit, nullptr, 2);
    ASSERT_GE(door, 0) << std::strerror(errno);
    void* result = nullptr;
    EXPECT_EQ(::pthread_join(threads.front(), &result), 0);
    EXPECT_EQ(result, PTHREAD_CANCELED);
    EXPECT_EQ(call(door, "x").data, "x");
  });
}

TEST(DoorXcreate, AThreadThatComesAfterAFailureEnds) {
  struct Late {
    pthread_t thread{};
    void* (*startf)(void*) = nullptr;
    void* argument = nullptr;
    Event go;
  };
  static Late& late = *new Late;
  const auto create = [](door_info_t*, void* (*startf)(void*), void* argument, void*) {
    late.startf = startf;
    late.argument = argument;
    const auto run = [](void*) -> void* {
      (void)late.go.wait();
      return late.startf(late.argument);
    };
    return ::pthread_create(&late.thread, nullptr, run, nullptr) == 0 ? -2 : -1;
  };
  EXPECT_EQ(ERROR_OF(::door_xcreate(echo, nullptr, 0, create, nullptr, nullptr, 1)), EPIPE);
  late.go.happens();
  timespec end{};
  ::clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 10;
  EXPECT_EQ(::pthread_timedjoin_np(late.thread, nullptr, &end), 0);
}

TEST(DoorXcreate, WithoutDepletionCallbackNoThreadIsMadeLater) {
  static Maker& maker = *new Maker;  // for threads that outlive everything
  static Gate gate;
  const int door = ::door_xcreate(procedure_of<Gate>, &gate, DOOR_NO_DEPLETION_CB, make_thread,
                                  nullptr, &maker, 2);
  ASSERT_GE(door, 0) << std::strerror(errno);
  Caller first(door, "1");
  Caller second(door, "2");
  ASSERT_TRUE(gate.entered.wait());
  ASSERT_TRUE(gate.entered.wait());
  Caller third(door, "3");
  EXPECT_TRUE(third.waits());
  EXPECT_EQ(maker.count(), 2U);
  for (int i = 0; i < 3; ++i) gate.open.happens();
  EXPECT_EQ(first.reply().data, "1");
  EXPECT_EQ(second.reply().data, "2");
  EXPECT_EQ(third.reply().data, "3");
  EXPECT_EQ(maker.count(), 2U);
}

TEST(DoorXcreate, AClientThatNeverPausesKeepsNobodyFromTheOnlyThread) {
  static Maker& maker = *new Maker;
  const int door =
      ::door_xcreate(echo, nullptr, DOOR_NO_DEPLETION_CB, make_thread, nullptr, &maker, 1);
  ASSERT_GE(door, 0) << std::strerror(errno);
  std::atomic<bool> over{false};
  std::thread restless([&] {
    while (!over) EXPECT_EQ(error_of(door, "again"), 0);
  });
  for (int i = 0; i < 50; ++i) EXPECT_EQ(call(door, "x").data, "x");
  over = true;
  restless.join();
}

TEST(DoorXcreate, IgnoresTheFunctionOfServerCreate) {
  in_child([] {
    static std::atomic<int> asked{0};
    ::door_server_create([](door_info_t*) { ++asked; });
    static Maker& maker = *new Maker;  // for threads that outlive everything
    const int door = ::door_xcreate(echo, nullptr, 0, make_thread, nullptr, &maker, 1);
    ASSERT_GE(door, 0) << std::strerror(errno);
    EXPECT_EQ(call(door, "x").data, "x");
    EXPECT_EQ(asked, 0);
  });
}

}  // namespace
}  // namespace farcall::door::test
