// SPDX-License-Identifier: Apache-2.0
//
// Threads that can be cancelled at any moment: that is for procedures.
#include <gtest/gtest.h>
#include <pthread.h>

#include "door/handlers.h"
#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

void* end_of(pthread_t thread) {
  void* result = nullptr;
  EXPECT_EQ(::pthread_join(thread, &result), 0);
  return result;
}

TEST(DoorCancelAtOnce, AProcedureIsThatComputes) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  in_child([] {
    static handled handled{};
    static Event& entered = lasting<Event>();
    handled.entered = [](void*) { entered.happens(); };
    static pthread_t server;
    ::door_server_create([](door_info_t*) {
      pthread_t made{};
      ::pthread_create(&made, nullptr, serve_to_be_cancelled_at_once, nullptr);
      server = made;  // the last of those that have come to serve
    });
    // One thread serves; what it asks for comes to nothing.
    const int door = ::door_create(answer_or_compute, &handled, 0);
    ASSERT_GE(door, 0) << std::strerror(errno);
    const pthread_t first = server;
    ::door_server_create([](door_info_t*) {});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(call(door, "answered").data, "answered");
    Caller caller(door);
    ASSERT_TRUE(entered.wait());
    EXPECT_EQ(caller.interrupt().error, EINTR);
    EXPECT_EQ(end_of(first), PTHREAD_CANCELED);
  });
}

TEST(DoorCancelAtOnce, AThreadIsThatWaitsForCalls) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    const int door = ::door_create(echo, nullptr, 0);
    for (int i = 0; i < 3; ++i) {
      pthread_t server{};
      ASSERT_EQ(::pthread_create(&server, nullptr, serve_to_be_cancelled_at_once, nullptr), 0);
      EXPECT_EQ(call(door, "x").data, "x");
      ASSERT_TRUE(others_come_to_rest());
      ASSERT_EQ(::pthread_cancel(server), 0);
      EXPECT_EQ(end_of(server), PTHREAD_CANCELED);
    }
  });
}

TEST(DoorCancelAtOnce, AThreadIsThatCalls) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  in_child([] {
    Gate& gate = lasting<Gate>();
    static int door = make_door(gate);
    pthread_t client{};
    ASSERT_EQ(::pthread_create(&client, nullptr, call_to_be_cancelled_at_once, &door), 0);
    ASSERT_TRUE(gate.entered.wait());
    ASSERT_TRUE(others_come_to_rest());
    ASSERT_EQ(::pthread_cancel(client), 0);
    EXPECT_EQ(end_of(client), PTHREAD_CANCELED);
    gate.open.happens();
    // And is again after a call.
    ASSERT_EQ(::pthread_create(&client, nullptr, call_to_be_cancelled_at_once, &door), 0);
    gate.open.happens();
    EXPECT_EQ(end_of(client), nullptr);
  });
}

#if defined(__x86_64__)
constexpr int kSteps = 100;  // until all that concerns cancellation is settled

TEST(DoorCancelAtOnce, AThreadIsAtWhateverInstructionItBeginsToAnswer) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  FARCALL_SKIP_UNDER_ASAN("has instructions of its own there");
  in_child([] {
    ::door_server_create([](door_info_t*) {});
    const int door = ::door_create(answer_in_steps, nullptr, 0);
    prepare_steps();
    for (int steps = 1; steps <= kSteps; ++steps) {
      SCOPED_TRACE(steps);
      pthread_t server{};
      ASSERT_EQ(::pthread_create(&server, nullptr, serve_to_be_cancelled_at_once, nullptr), 0);
      EXPECT_EQ(call(door, "x").data, "x");
      const std::string count(reinterpret_cast<const char*>(&steps), sizeof steps);
      const Reply reply = call(door, count);
      EXPECT_TRUE(reply.error == EINTR || reply.data == count) << reply.error;
      EXPECT_EQ(end_of(server), PTHREAD_CANCELED);
    }
  });
}

TEST(DoorCancelAtOnce, AThreadIsAtWhateverInstructionItBeginsToCall) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_ENDED);
  FARCALL_SKIP_UNDER_ASAN("has instructions of its own there");
  in_child([] {
    const int door = ::door_create(echo, nullptr, 0);
    EXPECT_EQ(call(door, "x").data, "x");
    prepare_steps();
    for (int count = 1; count <= kSteps; ++count) {
      SCOPED_TRACE(count);
      steps mine{.door = door, .count = count};
      pthread_t client{};
      ASSERT_EQ(::pthread_create(&client, nullptr, call_in_steps, &mine), 0);
      EXPECT_EQ(end_of(client), PTHREAD_CANCELED);
    }
  });
}
#endif

}  // namespace
}  // namespace farcall::door::test
