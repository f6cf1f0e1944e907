// SPDX-License-Identifier: Apache-2.0
//
// What door_create() makes and refuses, and what door_info() tells of it.
#include <gtest/gtest.h>

#include <climits>
#include <cstdint>
#include <set>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

constexpr uint_t kAllowed =
    DOOR_UNREF | DOOR_PRIVATE | DOOR_UNREF_MULTI | DOOR_REFUSE_DESC | DOOR_NO_CANCEL;

size_t param(int door, int which) {
  size_t value = 77;
  EXPECT_EQ(::door_getparam(door, which, &value), 0) << std::strerror(errno);
  return value;
}

TEST(DoorCreate, RefusesAttributesThatAreNotItsOwn) {
  for (unsigned bit = 0; bit < 32; ++bit) {
    const uint_t attribute = 1U << bit;
    if ((attribute & kAllowed) != 0) continue;
    EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, attribute)), EINVAL) << std::hex << attribute;
    EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, attribute | DOOR_REFUSE_DESC)), EINVAL);
  }
}

TEST(DoorCreate, RefusesUnrefTogetherWithUnrefMulti) {
  EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, DOOR_UNREF | DOOR_UNREF_MULTI)), EINVAL);
}

TEST(DoorCreate, RefusesNoDepletionCallback) {
  EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, DOOR_NO_DEPLETION_CB)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, DOOR_PRIVATE | DOOR_NO_DEPLETION_CB)), EINVAL);
}

TEST(DoorCreate, TakesAllOtherCombinationsAndReportsThem) {
  for (uint_t attributes = 0; attributes <= kAllowed; ++attributes) {
    constexpr uint_t kBoth = DOOR_UNREF | DOOR_UNREF_MULTI;
    if ((attributes & ~kAllowed) != 0 || (attributes & kBoth) == kBoth) continue;
    const int door = ::door_create(echo, nullptr, attributes);
    ASSERT_GE(door, 0) << std::hex << attributes << ": " << std::strerror(errno);
    EXPECT_EQ(info_of(door).di_attributes & ~static_cast<uint_t>(DOOR_IS_UNREF),
              attributes | DOOR_LOCAL);
    EXPECT_EQ(::door_revoke(door), 0);
  }
}

TEST(DoorCreate, FailsWithEmfileWhenNoDescriptorIsLeft) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  in_child([] {
    const FewDescriptors none;
    EXPECT_EQ(ERROR_OF(::door_create(echo, nullptr, 0)), EMFILE);
  });
}

TEST(DoorCreate, LeaksNothingHoweverManyDescriptorsItLacks) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors to look at memory";
  for (rlim_t left = 0; left < 12; ++left) {
    in_child([left] {
      auto create = [left] {
        const FewDescriptors few(left);
        const int door = ::door_create(echo, nullptr, 0);
        if (door < 0) {
          EXPECT_EQ(errno, EMFILE);
        }
        return door;
      };
      // Over the module the next attempt goes on with the device, the reactor's and the pool.
      const std::size_t kept = open_descriptors() + 3;
      int door = create();
      const std::size_t before = open_descriptors();
      for (int i = 0; i < 5 && door < 0; ++i) {
        door = create();
        if (door < 0) {
          // Some are closed by another thread.
          EXPECT_TRUE(eventually([&] {
            return open_descriptors() <= (over_module() ? kept : before);
          })) << left
              << " left";
        }
      }
      if (door < 0) door = ::door_create(echo, nullptr, 0);
      ASSERT_GE(door, 0) << std::strerror(errno);
      EXPECT_EQ(call(door, "x").data, "x");
    });
  }
}

TEST(DoorCreate, MakesADescriptorThatIsClosedOnExec) {
  const int door = ::door_create(echo, nullptr, 0);
  ASSERT_GE(door, 0);
  EXPECT_EQ(::fcntl(door, F_GETFD), FD_CLOEXEC);
}

TEST(DoorCreate, GivesIdsThatAreUniqueOnTheMachine) {
  struct Ids {
    door_id_t child[100];
  };
  const Shared<Ids> ids;
  in_child([&] {
    for (door_id_t& id : ids->child) {
      const int door = ::door_create(echo, nullptr, 0);
      id = id_of(door);
      ::door_revoke(door);
    }
  });
  std::set<door_id_t> seen(ids->child, ids->child + 100);
  for (int i = 0; i < 100; ++i) {
    const int door = ::door_create(echo, nullptr, 0);
    ASSERT_GE(door, 0);
    seen.insert(id_of(door));
    EXPECT_EQ(::door_revoke(door), 0);
  }
  EXPECT_EQ(seen.size(), 200U);
  for (const door_id_t id : seen)
    EXPECT_GT(static_cast<long long>(id), 0) << "who keeps it in a signed number";
}

TEST(DoorCreate, DefaultLimitsAreNone) {
  const int door = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(param(door, DOOR_PARAM_DATA_MIN), 0U);
  EXPECT_EQ(param(door, DOOR_PARAM_DATA_MAX), SIZE_MAX);
  EXPECT_EQ(param(door, DOOR_PARAM_DESC_MAX), static_cast<size_t>(INT_MAX));
}

TEST(DoorCreate, RefusingDescriptorsMeansAtMostNone) {
  const int door = ::door_create(echo, nullptr, DOOR_REFUSE_DESC);
  EXPECT_EQ(param(door, DOOR_PARAM_DESC_MAX), 0U);
  EXPECT_EQ(param(door, DOOR_PARAM_DATA_MAX), SIZE_MAX);
}

// ---- door_info ----

TEST(DoorInfo, TellsServerProcedureAndCookie) {
  int cookie;
  const int door = ::door_create(echo, &cookie, DOOR_NO_CANCEL);
  const pid_t server = ::getpid();
  const door_id_t id = id_of(door);
  EXPECT_NE(id, 0U);
  in_server_and_client([&] {
    const door_info_t info = info_of(door);
    EXPECT_EQ(info.di_target, server);
    EXPECT_EQ(+info.di_proc, reinterpret_cast<door_ptr_t>(&echo));
    EXPECT_EQ(+info.di_data, reinterpret_cast<door_ptr_t>(&cookie));
    EXPECT_EQ(+info.di_uniquifier, id);
    EXPECT_EQ(info.di_attributes,
              DOOR_NO_CANCEL | (::getpid() == server ? static_cast<uint_t>(DOOR_LOCAL) : 0U));
  });
}

TEST(DoorInfo, IsTheSameThroughADuplicate) {
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(door));
  EXPECT_EQ(id_of(second.get()), id_of(door));
  EXPECT_EQ(call(second.get(), "x").data, "x");
}

TEST(DoorInfo, FailsForWhatIsNoDoor) {
  door_info_t info;
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
  const UniqueFd ends[2] = {UniqueFd(pair[0]), UniqueFd(pair[1])};
  in_server_and_client([&] {
    for (const int fd : {-1, DOOR_QUERY - 1, 9999, 0, pair[0]})
      EXPECT_EQ(ERROR_OF(::door_info(fd, &info)), EBADF) << fd;
  });
}

TEST(DoorInfo, FailsWithEfaultWhereItCannotWrite) {
  const int door = ::door_create(echo, nullptr, 0);
  in_server_and_client([&] {
    EXPECT_EQ(ERROR_OF(::door_info(door, nullptr)), EFAULT);
    EXPECT_EQ(ERROR_OF(::door_info(door, reinterpret_cast<door_info_t*>(16))), EFAULT);
  });
  // Readable is not enough.
  EXPECT_EQ(
      ERROR_OF(::door_info(door, reinterpret_cast<door_info_t*>(reinterpret_cast<char*>(&echo)))),
      EFAULT);
}

TEST(DoorInfo, TellsARevokedDoor) {
  const int door = ::door_create(echo, nullptr, 0);
  const UniqueFd second(::dup(door));
  const Shared<Event> called;
  const Shared<Event> revoked;
  Child client([&] {
    EXPECT_EQ(call(second.get(), "x").data, "x");
    called->happens();
    ASSERT_TRUE(revoked->wait());
    EXPECT_EQ(info_of(second.get()).di_attributes, static_cast<uint_t>(DOOR_REVOKED));
  });
  ASSERT_TRUE(called->wait());
  ASSERT_EQ(::door_revoke(door), 0);
  revoked->happens();
  EXPECT_EQ(info_of(second.get()).di_attributes, static_cast<uint_t>(DOOR_REVOKED | DOOR_LOCAL));
  EXPECT_EQ(client.join(), 0);
}

TEST(DoorInfo, HasNoTargetOnceTheServerHasDied) {
  ScopedServer server([] { return ::door_create(echo, nullptr, 0); });
  const door_info_t before = info_of(server.door());
  EXPECT_EQ(before.di_target, server.pid());
  EXPECT_EQ(before.di_attributes, 0U);
  server.kill();
  const door_info_t after = info_of(server.door());
  EXPECT_EQ(after.di_target, -1);
  EXPECT_NE(after.di_attributes & DOOR_REVOKED, 0U);
  EXPECT_EQ(+after.di_uniquifier, +before.di_uniquifier);
}

TEST(DoorInfo, QueryFailsForAThreadThatIsNotBound) {
  door_info_t info;
  EXPECT_EQ(ERROR_OF(::door_info(DOOR_QUERY, &info)), EBADF);
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    door_info_t here;
    answer_number(ERROR_OF(::door_info(DOOR_QUERY, &here)));
  };
  EXPECT_EQ(call(make_door(procedure)).number<int>(), EBADF);
}

}  // namespace
}  // namespace farcall::door::test
