// SPDX-License-Identifier: Apache-2.0
//
// door_getparam() and door_setparam(), and what the limits do to calls.
#include <gtest/gtest.h>

#include <climits>
#include <cstdint>

#include "door/scoped_server.hpp"
#include "farcall/limits.h"

namespace farcall::door::test {
namespace {

constexpr int kParams[] = {DOOR_PARAM_DESC_MAX, DOOR_PARAM_DATA_MAX, DOOR_PARAM_DATA_MIN};

size_t param(int door, int which) {
  size_t value = 77;
  EXPECT_EQ(::door_getparam(door, which, &value), 0) << std::strerror(errno);
  return value;
}

TEST(DoorParam, WhatIsSetIsSeenEverywhere) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 1000), 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MIN, 10), 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, 3), 0);
  in_server_and_client([&] {
    EXPECT_EQ(param(door, DOOR_PARAM_DATA_MAX), 1000U);
    EXPECT_EQ(param(door, DOOR_PARAM_DATA_MIN), 10U);
    EXPECT_EQ(param(door, DOOR_PARAM_DESC_MAX), 3U);
  });
}

TEST(DoorParam, ClientsSeeWhatIsSetLater) {
  const int door = ::door_create(echo, nullptr, 0);
  const Shared<Event> seen;
  const Shared<Event> changed;
  Child client([&] {
    EXPECT_EQ(error_of(door, "four"), 0);
    seen->happens();
    ASSERT_TRUE(changed->wait());
    EXPECT_EQ(param(door, DOOR_PARAM_DATA_MAX), 3U);
    EXPECT_EQ(error_of(door, "four"), ENOBUFS);
    EXPECT_EQ(call(door, "two").data, "two");
  });
  ASSERT_TRUE(seen->wait());
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 3), 0);
  changed->happens();
  EXPECT_EQ(client.join(), 0);
}

// Waits for the other of two threads that do something at once.
void await(const std::atomic<int>& reached, int round) {
  for (int i = 0; reached.load(std::memory_order_acquire) < round; ++i)
    if (i > 1000) std::this_thread::yield();
}

// Each tells all clients, which are many, and does not take back what the other has told.
TEST(DoorParam, TwoThatAreSetAtOnceAreBothSeen) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  // The module's clients ask the door itself; there it is to go well, on a slow machine.
  const int rounds = over_module() ? 200 : 20'000 / kSlow;
  constexpr int kSessions = 40;
  const int door = ::door_create(echo, nullptr, 0);
  const Shared<Event> set;
  const Shared<Event> seen;
  Child client([&] {
    static Event called;
    for (int i = 0; i < kSessions; ++i) {
      std::thread([door] {
        EXPECT_EQ(error_of(door, "x"), 0);
        called.happens();
        ::pause();
      }).detach();
      ASSERT_TRUE(called.wait());
    }
    for (int i = 0; i < rounds; ++i) {
      seen->happens();
      ASSERT_TRUE(set->wait());
      ASSERT_EQ(param(door, DOOR_PARAM_DATA_MAX), 1002U);
      ASSERT_EQ(param(door, DOOR_PARAM_DESC_MAX), 2U);
    }
  });
  std::atomic<int> begun{0};
  std::atomic<int> done{0};
  const auto set_twice = [&](int which, std::size_t first) {
    for (std::size_t i = 1; i <= 2; ++i) EXPECT_EQ(::door_setparam(door, which, first + i), 0);
  };
  std::thread other([&] {
    for (int i = 1; i <= rounds; ++i) {
      await(begun, i);
      set_twice(DOOR_PARAM_DESC_MAX, 0);
      done.store(i, std::memory_order_release);
    }
  });
  bool goes_on = true;
  for (int i = 1; i <= rounds; ++i) {
    goes_on = goes_on && seen->wait();
    begun.store(i, std::memory_order_release);
    set_twice(DOOR_PARAM_DATA_MAX, 1000);
    await(done, i);
    set->happens();
  }
  other.join();
  EXPECT_EQ(client.join(), 0);
}

TEST(DoorParam, RequestsOutsideTheLimitsGetEnobufs) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 5), 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MIN, 2), 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of(door, "1"), ENOBUFS);
    EXPECT_EQ(call(door, "12").data, "12");
    EXPECT_EQ(call(door, "12345").data, "12345");
    EXPECT_EQ(error_of(door, "123456"), ENOBUFS);
    EXPECT_EQ(ERROR_OF(::door_call(door, nullptr)), ENOBUFS);  // a ping has no bytes
  });
}

TEST(DoorParam, DoNotLimitReplies) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    return Answer(std::string(700, 'r'));
  };
  const int door = make_door(procedure);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 5), 0);
  in_server_and_client([&] { EXPECT_EQ(call(door, "x").data.size(), 700U); });
}

TEST(DoorParam, MoreDescriptorsThanAllowedGetEnfile) {
  auto procedure = [](char*, size_t, door_desc_t* descriptors, uint_t count) {
    for (uint_t i = 0; i < count; ++i) ::close(fd_of(descriptors[i]));
    answer_number(count);
  };
  const int door = make_door(procedure);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, 2), 0);
  in_server_and_client([&] {
    EXPECT_EQ(call(door, "", {pass(0), pass(0)}).number<uint_t>(), 2U);
    EXPECT_EQ(error_of(door, "", {pass(0), pass(0), pass(0)}), ENFILE);
  });
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, 0), 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of(door, "", {pass(0)}), ENFILE);
    EXPECT_EQ(call(door).number<uint_t>(), 0U);
  });
}

TEST(DoorParam, AttributesAreNoPartOfThem) {
  const int door = ::door_create(echo, nullptr, DOOR_NO_CANCEL | DOOR_UNREF_MULTI);
  in_server_and_client(
      [&] { EXPECT_EQ(param(door, DOOR_PARAM_DESC_MAX), static_cast<size_t>(INT_MAX)); });
}

TEST(DoorParam, APingIsNotMeasuredByTheCallBefore) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 5), 0);
  in_server_and_client([&] {
    EXPECT_EQ(error_of(door, "123456"), ENOBUFS);
    EXPECT_EQ(ERROR_OF(::door_call(door, nullptr)), 0);
  });
}

TEST(DoorParam, OnlyTheCreatorMaySetThem) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    for (const int which : kParams)
      EXPECT_EQ(ERROR_OF(::door_setparam(door, which, 1)), EPERM) << which;
  });
  EXPECT_EQ(param(door, DOOR_PARAM_DATA_MIN), 0U);
}

TEST(DoorParam, BothFailForWhatIsNoDoor) {
  size_t value;
  for (const int fd : {-1, 9999, 0}) {
    EXPECT_EQ(ERROR_OF(::door_getparam(fd, DOOR_PARAM_DATA_MAX, &value)), EBADF);
    EXPECT_EQ(ERROR_OF(::door_setparam(fd, DOOR_PARAM_DATA_MAX, 1)), EBADF);
  }
}

TEST(DoorParam, BothFailWithEinvalForAnUnknownOne) {
  const int door = ::door_create(echo, nullptr, 0);
  size_t value;
  for (const int which : {0, 4, -1, 1000}) {
    EXPECT_EQ(ERROR_OF(::door_getparam(door, which, &value)), EINVAL) << which;
    EXPECT_EQ(ERROR_OF(::door_setparam(door, which, 1)), EINVAL) << which;
  }
}

TEST(DoorParam, GetFailsWithEfaultWhereItCannotWrite) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(ERROR_OF(::door_getparam(door, DOOR_PARAM_DATA_MAX, nullptr)), EFAULT);
    EXPECT_EQ(ERROR_OF(::door_getparam(door, DOOR_PARAM_DATA_MAX, reinterpret_cast<size_t*>(8))),
              EFAULT);
  });
}

TEST(DoorParam, ValuesOutOfRangeAreRefused) {
  const int door = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(ERROR_OF(::door_setparam(door, DOOR_PARAM_DESC_MAX, size_t{INT_MAX} + 1)), ERANGE);
  EXPECT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, INT_MAX), 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 100), 0);
  EXPECT_EQ(ERROR_OF(::door_setparam(door, DOOR_PARAM_DATA_MIN, 101)), EINVAL);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MIN, 100), 0);
  EXPECT_EQ(ERROR_OF(::door_setparam(door, DOOR_PARAM_DATA_MAX, 99)), EINVAL);
  EXPECT_EQ(param(door, DOOR_PARAM_DATA_MAX), 100U);
  EXPECT_EQ(param(door, DOOR_PARAM_DATA_MIN), 100U);
  EXPECT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 101), 0);
  EXPECT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 100), 0) << "as little as the least";
}

TEST(DoorParam, ADoorThatRefusesDescriptorsKeepsRefusingThem) {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  EXPECT_EQ(ERROR_OF(::door_setparam(door, DOOR_PARAM_DESC_MAX, 1)), ENOTSUP);
  EXPECT_EQ(::door_setparam(door, DOOR_PARAM_DESC_MAX, 0), 0);
  EXPECT_EQ(param(door, DOOR_PARAM_DESC_MAX), 0U);
}

TEST(DoorParam, WhoMayNotSetIsToldSoWhateverHeWantsToSet) {
  const int door = ::door_create(echo, nullptr, 0);
  in_child([&] {
    EXPECT_EQ(ERROR_OF(::door_setparam(door, 1000, 1)), EPERM);
    EXPECT_EQ(ERROR_OF(::door_setparam(door, DOOR_PARAM_DESC_MAX, size_t{INT_MAX} + 1)), EPERM);
  });
}

TEST(DoorParam, ARevokedDoorTellsThemAndTakesNone) {
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(door));
  ASSERT_EQ(::door_revoke(door), 0);
  in_server_and_client([&] {
    size_t value;
    EXPECT_EQ(::door_getparam(second.get(), DOOR_PARAM_DATA_MAX, &value), 0);
    EXPECT_EQ(value, SIZE_MAX);
    EXPECT_EQ(ERROR_OF(::door_setparam(second.get(), DOOR_PARAM_DATA_MAX, 1)), EBADF);
  });
}

TEST(DoorParam, ARevokedDoorThatRefusesDescriptorsTakesNone) {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  const UniqueFd second(::dup(door));
  ASSERT_EQ(::door_revoke(door), 0);
  in_server_and_client([&] { EXPECT_EQ(param(second.get(), DOOR_PARAM_DESC_MAX), 0U); });
}

TEST(DoorParam, AClientRemembersWhatARevokedDoorHasTold) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_EQ(::door_setparam(door, DOOR_PARAM_DATA_MAX, 100), 0);
  const Shared<Event> asked;
  const Shared<Event> revoked;
  Child client([&] {
    size_t value = 0;
    EXPECT_EQ(::door_getparam(door, DOOR_PARAM_DATA_MAX, &value), 0);
    asked->happens();
    ASSERT_TRUE(revoked->wait());
    value = 0;
    EXPECT_EQ(::door_getparam(door, DOOR_PARAM_DATA_MAX, &value), 0);
    EXPECT_EQ(value, 100U);
  });
  ASSERT_TRUE(asked->wait());
  ASSERT_EQ(::door_revoke(door), 0);
  revoked->happens();
  EXPECT_EQ(client.join(), 0);
}

TEST(DoorLimits, AreReadAsTheyWereSet) {
  farcall_limits limits{};
  limits.size = sizeof limits;
  ASSERT_EQ(::door_limits_get(&limits), 0);
  EXPECT_EQ(limits.size, sizeof limits);
  EXPECT_EQ(limits.sessions_per_user, 0U);
  in_child([] {
    farcall_limits wanted{};
    wanted.size = sizeof wanted;
    wanted.sessions_per_user = 7;
    wanted.patience_ns = 8;
    ASSERT_EQ(::door_limits_set(&wanted), 0);
    farcall_limits found{};
    found.size = sizeof found;
    ASSERT_EQ(::door_limits_get(&found), 0);
    EXPECT_EQ(found.size, sizeof found);
    EXPECT_EQ(found.sessions_per_user, 7U);
    EXPECT_EQ(found.patience_ns, 8);
    wanted.patience_ns = -1;
    EXPECT_EQ(ERROR_OF(::door_limits_set(&wanted)), EINVAL);
    ASSERT_EQ(::door_limits_get(&found), 0);
    EXPECT_EQ(found.patience_ns, 8) << "it stays";
  });
}

}  // namespace
}  // namespace farcall::door::test
