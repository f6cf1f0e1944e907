// SPDX-License-Identifier: Apache-2.0
//
// Who calls: door_cred(), door_ucred() and what ucred.h makes of it.
#include <grp.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <ucred.h>

#include <numeric>
#include <vector>

#include "door/scoped_server.hpp"

namespace farcall::door::test {
namespace {

constexpr int kMostGroups = 100;

struct Identity {
  pid_t pid;
  uid_t euid, ruid, suid;
  gid_t egid, rgid, sgid;
  int group_count;
  gid_t groups[kMostGroups];
};
Identity mine() {
  Identity self{};
  self.pid = ::getpid();
  ::getresuid(&self.ruid, &self.euid, &self.suid);
  ::getresgid(&self.rgid, &self.egid, &self.sgid);
  self.group_count = ::getgroups(kMostGroups, self.groups);
  return self;
}

void tell_cred(void*, char*, size_t, door_desc_t*, uint_t) {
  door_cred_t credentials{};
  if (::door_cred(&credentials) != 0) answer_number(errno);
  answer_number(credentials);
}
void expect_cred_of_caller(int door) {
  const auto seen = call(door).number<door_cred_t>();
  const Identity self = mine();
  EXPECT_EQ(seen.dc_pid, self.pid);
  EXPECT_EQ(seen.dc_euid, self.euid);
  EXPECT_EQ(seen.dc_ruid, self.ruid);
  EXPECT_EQ(seen.dc_egid, self.egid);
  EXPECT_EQ(seen.dc_rgid, self.rgid);
}

void tell_ucred(void*, char*, size_t, door_desc_t*, uint_t) {
  ucred_t* credentials = nullptr;
  if (::door_ucred(&credentials) != 0) answer_number(errno);
  Identity seen{};
  seen.pid = ::ucred_getpid(credentials);
  seen.euid = ::ucred_geteuid(credentials);
  seen.ruid = ::ucred_getruid(credentials);
  seen.suid = ::ucred_getsuid(credentials);
  seen.egid = ::ucred_getegid(credentials);
  seen.rgid = ::ucred_getrgid(credentials);
  seen.sgid = ::ucred_getsgid(credentials);
  const gid_t* groups = nullptr;
  seen.group_count = ::ucred_getgroups(credentials, &groups);
  for (int i = 0; i < std::min(seen.group_count, kMostGroups); ++i) seen.groups[i] = groups[i];
  ::ucred_free(credentials);
  answer_number(seen);
}
void expect_same(const Identity& seen, const Identity& self) {
  EXPECT_EQ(seen.pid, self.pid);
  EXPECT_EQ(seen.euid, self.euid);
  EXPECT_EQ(seen.ruid, self.ruid);
  EXPECT_EQ(seen.suid, self.suid);
  EXPECT_EQ(seen.egid, self.egid);
  EXPECT_EQ(seen.rgid, self.rgid);
  EXPECT_EQ(seen.sgid, self.sgid);
  ASSERT_EQ(seen.group_count, self.group_count);
  for (int i = 0; i < self.group_count; ++i) EXPECT_EQ(seen.groups[i], self.groups[i]) << i;
}
void expect_ucred_of_caller(int door) { expect_same(call(door).number<Identity>(), mine()); }

TEST(DoorCred, TellsWhoCalls) {
  const int door = ::door_create(tell_cred, nullptr, 0);
  in_server_and_client([&] { expect_cred_of_caller(door); });
}

// The library stands in front of the functions that change them.
TEST(DoorCred, TellsOfEachIdThatWasSet) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become another user";
  const int door = ::door_create(tell_ucred, nullptr, 0);
  in_child([&] {
    const auto expect_groups = [&](gid_t real, gid_t effective, gid_t saved) {
      const auto seen = call(door).number<Identity>();
      EXPECT_EQ(seen.rgid, real);
      EXPECT_EQ(seen.egid, effective);
      EXPECT_EQ(seen.sgid, saved);
    };
    ASSERT_EQ(::setregid(3001, 3002), 0);
    expect_groups(3001, 3002, 3002);
    ASSERT_EQ(::setresgid(3003, 3004, 3005), 0);
    expect_groups(3003, 3004, 3005);
    ASSERT_EQ(::setegid(3006), 0);
    expect_groups(3003, 3006, 3005);
    ASSERT_EQ(::setgid(3007), 0);
    expect_groups(3007, 3007, 3007);
  });
}

TEST(DoorCred, ReservesFieldsAsZero) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    door_cred_t credentials;
    std::memset(&credentials, 0x55, sizeof credentials);
    ::door_cred(&credentials);
    answer_number(credentials);
  };
  const auto seen = call(make_door(procedure)).number<door_cred_t>();
  for (const int reserved : seen.dc_resv) EXPECT_EQ(reserved, 0);
}

TEST(DoorCred, FailsOutsideACall) {
  door_cred_t credentials;
  ucred_t* more = nullptr;
  EXPECT_EQ(ERROR_OF(::door_cred(&credentials)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_ucred(&more)), EINVAL);
  // Also in a client, and after a call of its own.
  const int door = ::door_create(echo, nullptr, 0);
  EXPECT_EQ(error_of(door), 0);
  EXPECT_EQ(ERROR_OF(::door_cred(&credentials)), EINVAL);
  EXPECT_EQ(ERROR_OF(::door_ucred(&more)), EINVAL);
}

TEST(DoorCred, FailsWithEfaultWhereItCannotWrite) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    struct {
      int cred, ucred;
    } errors{ERROR_OF(::door_cred(reinterpret_cast<door_cred_t*>(8))),
             ERROR_OF(::door_ucred(reinterpret_cast<ucred_t**>(8)))};
    answer_number(errors);
  };
  struct Errors {
    int cred, ucred;
  };
  const auto errors = call(make_door(procedure)).number<Errors>();
  EXPECT_EQ(errors.cred, EFAULT);
  EXPECT_EQ(errors.ucred, EFAULT);
  auto over_nothing = [](char*, size_t, door_desc_t*, uint_t) {
    auto* credentials = reinterpret_cast<ucred_t*>(8);
    answer_number(ERROR_OF(::door_ucred(&credentials)));
  };
  EXPECT_EQ(call(make_door(over_nothing)).number<int>(), EFAULT);
}

// As programs do that keep room of ucred_size() bytes.
TEST(DoorCred, FillsInMemoryOfTheProgramsOwn) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    // Not where malloc() would have begun it.
    static std::vector<std::max_align_t> room(::ucred_size() / sizeof(std::max_align_t) + 2);
    auto* const own = reinterpret_cast<ucred_t*>(&room[1]);
    ucred_t* credentials = own;
    for (int i = 0; i < 2; ++i)
      if (::door_ucred(&credentials) != 0 || credentials != own) answer_number(pid_t{-1});
    answer_number(::ucred_getpid(own));
  };
  const int door = make_door(procedure);
  in_server_and_client([&] { EXPECT_EQ(call(door).number<pid_t>(), ::getpid()); });
}

TEST(DoorCred, FillsInItsOwnMemoryAgain) {
  auto procedure = [](char*, size_t, door_desc_t*, uint_t) {
    ucred_t* credentials = ::ucred_get(::getppid());
    ucred_t* const first = credentials;
    const bool same = ::door_ucred(&credentials) == 0 && credentials == first;
    const pid_t caller = same ? ::ucred_getpid(credentials) : -1;
    ::ucred_free(credentials);
    answer_number(caller);
  };
  const int door = make_door(procedure);
  in_server_and_client([&] { EXPECT_EQ(call(door).number<pid_t>(), ::getpid()); });
}

TEST(DoorCred, FollowsAClientThatChangesItsUser) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become other users";
  const int door = ::door_create(tell_cred, nullptr, 0);
  in_child([&] {
    expect_cred_of_caller(door);  // the session is open now
    ASSERT_EQ(::setresgid(3001, 3002, 0), 0);
    ASSERT_EQ(::setresuid(2001, 2002, 0), 0);
    expect_cred_of_caller(door);
    ASSERT_EQ(::seteuid(0), 0);
    expect_cred_of_caller(door);
    ASSERT_TRUE(become(kNobody));
    expect_cred_of_caller(door);
  });
}

TEST(DoorCred, TellsTheRealGroupOfWhoActsForAnotherOne) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become other users";
  const int door = ::door_create(tell_cred, nullptr, 0);
  in_child([&] {
    ASSERT_EQ(::setresgid(3001, 0, 0), 0);
    expect_cred_of_caller(door);
  });
}

TEST(DoorCred, IsTheImmediateCallers) {
  // A nested call is made by the server in between, not by the first client.
  const int last = ::door_create(tell_cred, nullptr, 0);
  auto middle = [&](char*, size_t, door_desc_t*, uint_t) { return Answer(call(last).data); };
  ScopedServer server([&] { return make_door(middle); });
  const auto seen = call(server.door()).number<door_cred_t>();
  EXPECT_EQ(seen.dc_pid, server.pid());
}

TEST(DoorCred, IsThereAgainAfterANestedCall) {
  const int other = ::door_create(echo, nullptr, 0);
  auto procedure = [&](char*, size_t, door_desc_t*, uint_t) {
    call(other);
    door_cred_t credentials{};
    ::door_cred(&credentials);
    answer_number(credentials.dc_pid);
  };
  const int door = make_door(procedure);
  in_child([&] { EXPECT_EQ(call(door).number<pid_t>(), ::getpid()); });
}

TEST(DoorCred, OfAForkedClientIsTheChilds) {
  const int door = ::door_create(tell_cred, nullptr, 0);
  in_child([&] {
    expect_cred_of_caller(door);
    in_child([&] {
      expect_cred_of_caller(door);
      in_child([&] { expect_cred_of_caller(door); });
    });
    expect_cred_of_caller(door);
  });
}

TEST(DoorUcred, TellsWhoCallsWithGroups) {
  const int door = ::door_create(tell_ucred, nullptr, 0);
  in_server_and_client([&] { expect_ucred_of_caller(door); });
}

TEST(DoorUcred, TellsSavedIdsAndGroupsOfOtherUsers) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become other users";
  const int door = ::door_create(tell_ucred, nullptr, 0);
  in_child([&] {
    expect_ucred_of_caller(door);
    const gid_t groups[] = {4001, 4002, 4003};
    ASSERT_EQ(::setgroups(3, groups), 0);
    ASSERT_EQ(::setresgid(3001, 3002, 3003), 0);
    ASSERT_EQ(::setresuid(2001, 2002, 2003), 0);
    expect_ucred_of_caller(door);
  });
}

TEST(DoorUcred, TellsAsManyGroupsAsSomebodyIsIn) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become other users";
  const int door = ::door_create(tell_ucred, nullptr, 0);
  for (const std::size_t count : {32U, 33U, 100U})
    in_child([&] {
      std::vector<gid_t> groups(count);
      std::iota(groups.begin(), groups.end(), 4001);
      ASSERT_EQ(::setgroups(count, groups.data()), 0);
      ASSERT_EQ(mine().group_count, static_cast<int>(count));
      expect_ucred_of_caller(door);
    });
}

TEST(DoorUcred, OfAnUnprivilegedServerTellsOtherUsersToo) {
  if (!is_root()) GTEST_SKIP() << "needs root, to become other users";
  ScopedServer server([] {
    EXPECT_TRUE(become(kNobody));
    return ::door_create(tell_ucred, nullptr, 0);
  });
  expect_ucred_of_caller(server.door());
  in_child([&] {
    ASSERT_TRUE(become(2001));
    expect_ucred_of_caller(server.door());
  });
}

TEST(Ucred, GetReadsThoseOfAProcess) {
  ucred_t* credentials = ::ucred_get(::getpid());
  ASSERT_NE(credentials, nullptr);
  EXPECT_EQ(::ucred_getpid(credentials), ::getpid());
  EXPECT_EQ(::ucred_geteuid(credentials), ::geteuid());
  EXPECT_EQ(::ucred_getrgid(credentials), ::getgid());
  EXPECT_GT(::ucred_size(), 0U);
  ::ucred_free(credentials);
  Child child([] { ::pause(); });
  credentials = ::ucred_get(child.pid());
  ASSERT_NE(credentials, nullptr);
  EXPECT_EQ(::ucred_getpid(credentials), child.pid());
  ::ucred_free(credentials);
}

TEST(Ucred, GetKnowsWhoAsks) {
  ucred_t* const credentials = ::ucred_get(P_MYID);
  ASSERT_NE(credentials, nullptr) << std::strerror(errno);
  EXPECT_EQ(::ucred_getpid(credentials), ::getpid());
  ::ucred_free(credentials);
}

// They may be filled in again, with those of somebody who is in more groups.
TEST(Ucred, HasRoomForTheGroupsOfAnybody) {
  ucred_t* const credentials = ::ucred_get(::getpid());
  ASSERT_NE(credentials, nullptr);
  EXPECT_GE(::malloc_usable_size(credentials), ::ucred_size());
  ::ucred_free(credentials);
}

// Each has a folder in /proc like a process's.
TEST(Ucred, GetFailsForAThreadThatIsNoProcess) {
  std::thread([] {
    errno = 0;
    EXPECT_EQ(::ucred_get(::gettid()), nullptr);
    EXPECT_EQ(errno, ESRCH);
  }).join();
}

TEST(Ucred, GetFailsForNoProcess) {
  Child child([] {});
  const pid_t gone = child.pid();
  EXPECT_EQ(child.join(), 0);
  errno = 0;
  EXPECT_EQ(::ucred_get(gone), nullptr);
  EXPECT_EQ(errno, ESRCH);
}

}  // namespace
}  // namespace farcall::door::test
