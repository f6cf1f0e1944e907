// SPDX-License-Identifier: Apache-2.0
//
// door_bind() and door_unbind(): which pool a thread serves.
#include <gtest/gtest.h>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

void no_threads(door_info_t*) {}

// Tells which door the serving thread is bound to, 0 if none.
void tell_binding(void*, char*, size_t, door_desc_t*, uint_t) {
  door_info_t info{};
  if (::door_info(DOOR_QUERY, &info) != 0) info.di_uniquifier = 0;
  answer_number(info.di_uniquifier);
}

int private_door() {
  ::door_server_create(no_threads);
  const int door = ::door_create(tell_binding, nullptr, DOOR_PRIVATE);
  EXPECT_GE(door, 0);
  return door;
}

TEST(DoorBind, RefusesWhatIsNoDoor) {
  for (const int fd : {-1, 9999, 0}) EXPECT_EQ(ERROR_OF(::door_bind(fd)), EBADF) << fd;
}

TEST(DoorBind, RefusesSharedDoors) {
  const int door = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(ERROR_OF(::door_bind(door)), EINVAL);
}

TEST(DoorBind, RefusesDoorsOfOtherProcesses) {
  const int door = private_door();
  in_child([&] { EXPECT_EQ(ERROR_OF(::door_bind(door)), EINVAL); });
  ScopedServer server([] { return private_door(); });
  EXPECT_EQ(ERROR_OF(::door_bind(server.door())), EINVAL);
}

TEST(DoorBind, UnbindFailsForAThreadThatIsNotBound) { EXPECT_EQ(ERROR_OF(::door_unbind()), EBADF); }

TEST(DoorBind, QueryTellsTheDoor) {
  const int door = private_door();
  ASSERT_EQ(::door_bind(door), 0) << std::strerror(errno);
  EXPECT_EQ(id_of(DOOR_QUERY), id_of(door));
  EXPECT_EQ(info_of(DOOR_QUERY).di_attributes, info_of(door).di_attributes);
  std::thread([] {
    door_info_t info;
    EXPECT_EQ(ERROR_OF(::door_info(DOOR_QUERY, &info)), EBADF) << "another thread";
  }).join();
  EXPECT_EQ(::door_unbind(), 0);
  door_info_t info;
  EXPECT_EQ(ERROR_OF(::door_info(DOOR_QUERY, &info)), EBADF);
  EXPECT_EQ(ERROR_OF(::door_unbind()), EBADF);
}

TEST(DoorBind, BindingToAnotherDoorUnbindsFromTheFirst) {
  const int first = private_door();
  const int second = private_door();
  ASSERT_EQ(::door_bind(first), 0);
  ASSERT_EQ(::door_bind(second), 0);
  EXPECT_EQ(id_of(DOOR_QUERY), id_of(second));
  EXPECT_EQ(::door_unbind(), 0);
  EXPECT_EQ(ERROR_OF(::door_unbind()), EBADF);
}

TEST(DoorBind, AFailureKeepsTheBindingBefore) {
  const int door = private_door();
  ASSERT_EQ(::door_bind(door), 0);
  EXPECT_EQ(ERROR_OF(::door_bind(-1)), EBADF);
  EXPECT_EQ(id_of(DOOR_QUERY), id_of(door));
}

TEST(DoorBind, ABoundThreadServesItsDoor) {
  const int door = private_door();
  std::thread([door] {
    EXPECT_EQ(::door_bind(door), 0);
    ::door_return(nullptr, 0, nullptr, 0);
  }).detach();
  in_server_and_client([&] { EXPECT_EQ(call(door).number<door_id_t>(), id_of(door)); });
}

TEST(DoorBind, ABoundThreadServesNoOtherDoor) {
  in_child([] {
    const int bound = private_door();
    const int shared = ::door_create(echo, nullptr, 0);
    std::thread([bound] {
      EXPECT_EQ(::door_bind(bound), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
    EXPECT_EQ(call(bound).number<door_id_t>(), id_of(bound));
    Caller caller(shared, "x");
    EXPECT_TRUE(caller.waits());
    std::thread([] { ::door_return(nullptr, 0, nullptr, 0); }).detach();
    EXPECT_EQ(caller.reply().data, "x");
  });
}

TEST(DoorBind, AThreadThatUnbindsInItsProcedureGoesToTheSharedPool) {
  in_child([] {
    ::door_server_create(no_threads);
    const int bound = ::door_create(
        [](void*, char*, size_t, door_desc_t*, uint_t) {
          EXPECT_EQ(::door_unbind(), 0);
          answer("unbound");
        },
        nullptr, DOOR_PRIVATE);
    const int shared = ::door_create(tell_binding, nullptr, 0);
    std::thread([bound] {
      EXPECT_EQ(::door_bind(bound), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
    EXPECT_EQ(call(bound).data, "unbound");
    EXPECT_EQ(call(shared).number<door_id_t>(), 0U);
    Caller caller(bound);
    EXPECT_TRUE(caller.waits());
    EXPECT_EQ(caller.interrupt().error, EAGAIN);
  });
}

// It has answered already, and nobody else serves the other pool.
TEST(DoorBind, AThreadThatFindsNoDescriptorForThePoolItGoesToTriesAgain) {
  FARCALL_SKIP_UNDER_ASAN("and its companions need descriptors to look at memory");
  in_child([] {
    ::door_server_create(no_threads);
    static std::unique_ptr<FewDescriptors> none;
    const int bound = ::door_create(
        [](void*, char*, size_t, door_desc_t*, uint_t) {
          EXPECT_EQ(::door_unbind(), 0);
          none = std::make_unique<FewDescriptors>();
          answer("unbound");
        },
        nullptr, DOOR_PRIVATE);
    std::thread([bound] {
      EXPECT_EQ(::door_bind(bound), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
    EXPECT_EQ(call(bound).data, "unbound");
    std::this_thread::sleep_for(50ms);
    none = nullptr;
    const int shared = ::door_create(tell_binding, nullptr, 0);
    EXPECT_EQ(call(shared).number<door_id_t>(), 0U);
  });
}

// It does not serve the door, and does not know that it is to serve others instead.
TEST(DoorBind, OfAForkedThreadIsOneToNothingUntilItIsUndone) {
  const int door = private_door();
  ASSERT_EQ(::door_bind(door), 0);
  in_child([] {
    EXPECT_EQ(ERROR_OF(::door_return(nullptr, 0, nullptr, 0)), EINVAL);
    in_child([] { EXPECT_EQ(ERROR_OF(::door_return(nullptr, 0, nullptr, 0)), EINVAL); });
    door_info_t info;
    EXPECT_EQ(ERROR_OF(::door_info(DOOR_QUERY, &info)), EBADF);
    EXPECT_EQ(::door_unbind(), 0);
    EXPECT_EQ(ERROR_OF(::door_unbind()), EBADF);
  });
  in_child([] {
    EXPECT_EQ(::door_bind(private_door()), 0);
    EXPECT_EQ(::door_unbind(), 0);
    EXPECT_EQ(ERROR_OF(::door_unbind()), EBADF);
  });
  EXPECT_EQ(id_of(DOOR_QUERY), id_of(door));
  EXPECT_EQ(::door_unbind(), 0);
}

TEST(DoorBind, ACreateFunctionMayMakeThreadsThatBind) {
  // As the manual page shows it: the thread that is made learns the door when it exists.
  in_child([] {
    static std::promise<int> made;
    static std::shared_future<int> door = made.get_future().share();
    ::door_server_create([](door_info_t* info) {
      if (info == nullptr) return;
      std::thread([] {
        EXPECT_EQ(::door_bind(door.get()), 0);
        ::door_return(nullptr, 0, nullptr, 0);
      }).detach();
    });
    made.set_value(::door_create(tell_binding, nullptr, DOOR_PRIVATE));
    for (int i = 0; i < 100; ++i)
      EXPECT_EQ(call(door.get()).number<door_id_t>(), id_of(door.get()));
  });
}

TEST(DoorBind, DepletionOfAPrivatePoolIsToldWithItsInfo) {
  in_child([] {
    static std::atomic<int> door{-1};
    static std::atomic<door_id_t> depleted{0};
    ::door_server_create([](door_info_t* info) {
      if (door >= 0 && info != nullptr) depleted = info->di_uniquifier;
    });
    door = ::door_create(tell_binding, nullptr, DOOR_PRIVATE);
    std::thread([] {
      EXPECT_EQ(::door_bind(door), 0);
      ::door_return(nullptr, 0, nullptr, 0);
    }).detach();
    EXPECT_EQ(call(door).number<door_id_t>(), id_of(door));
    EXPECT_EQ(depleted, id_of(door));
  });
}

}  // namespace
}  // namespace farcall::door::test
