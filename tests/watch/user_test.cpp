// SPDX-License-Identifier: Apache-2.0
#include <sys/prctl.h>

#include <cerrno>

#include "farcall/observe.hpp"
#include "watch/act_as.hpp"
#include "watch/ends.hpp"
#include "watch/lease.hpp"

namespace farcall::test {
namespace {

using observe::Entry;
using observe::Kind;
using observe::Role;

constexpr uid_t kSomebody = 65'533;
constexpr uid_t kSomebodyElse = 65'532;

// As who came to be that user by login: a process that has only changed its ids is protected.
void become(uid_t user) {
  EXPECT_EQ(::setresgid(user, user, user), 0);
  EXPECT_EQ(::setresuid(user, user, user), 0);
  EXPECT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0);
}

// Whose process gets no processor for two seconds seems to keep root waiting, and is not asked
// again before that is made up for.
watch::Seen look_patiently(pid_t pid, watch::Process& process) {
  watch::Seen seen = watch::look(pid, process);
  for (int i = 0; i < 60'000 && seen == watch::Seen::silent; ++i) {
    ::usleep(1000);
    seen = watch::look(pid, process);
  }
  return seen;
}
std::size_t renew_patiently(const watch::Process& process, const std::vector<watch::Lease>& lease) {
  std::size_t renewed = watch::renew(process, lease, std::chrono::seconds(1));
  for (int i = 0; i < 60'000 && renewed == 0 && errno == ETIMEDOUT; ++i) {
    ::usleep(1000);
    renewed = watch::renew(process, lease, std::chrono::seconds(1));
  }
  return renewed;
}

TEST(WatchUser, OthersAreInvisible) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  const Entry entry({.kind = Kind::ring, .role = Role::client});
  Gate ready;
  Gate done;
  const Child one([&] {
    become(kSomebody);
    const Entry own({.kind = Kind::ring, .role = Role::client});
    observe::note_sent(own.sent(), nullptr, 9);
    ready.open();
    done.wait();
    return 0;
  });
  ready.wait();
  const pid_t root = ::getpid();
  Child other([&] {
    become(kSomebodyElse);
    watch::Process process;
    if (watch::look(root, process) != watch::Seen::forbidden || !process.ends.empty()) return 1;
    if (watch::look(one.pid(), process) != watch::Seen::forbidden || !process.ends.empty())
      return 2;
    for (const watch::Process& seen : watch::Everybody().look())
      if (seen.user != kSomebodyElse) return 3;
    return 0;
  });
  EXPECT_EQ(other.wait(), 0);
  Child same([&] {
    become(kSomebody);
    watch::Process process;
    if (watch::look(one.pid(), process) != watch::Seen::yes || process.ends.size() != 1) return 1;
    return process.ends[0].counters.sent.bytes == 9 ? 0 : 2;
  });
  EXPECT_EQ(same.wait(), 0);
  // Root sees all, and is root again afterwards.
  watch::Process process;
  EXPECT_EQ(look_patiently(one.pid(), process), watch::Seen::yes);
  ASSERT_EQ(process.ends.size(), 1U);
  EXPECT_EQ(
      renew_patiently(
          process, {{.word = watch::Lease::Word::watch, .end = &process.ends[0], .sampling = 0}}),
      1U);
  EXPECT_EQ(::geteuid(), 0U);
  EXPECT_EQ(::getegid(), 0U);
  done.open();
}

// What it looks at with is that user's rights: what the user may not see, root does not either.
TEST(WatchUser, RootLooksWithTheRightsOfTheOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  Gate ready;
  Gate done;
  const Child child([&] {
    become(kSomebody);
    const Entry own({.kind = Kind::ring, .role = Role::client});
    ::prctl(PR_SET_DUMPABLE, 0);  // as one that has executed a program with more rights
    ready.open();
    done.wait();
    return 0;
  });
  ready.wait();
  watch::Process process;
  EXPECT_EQ(look_patiently(child.pid(), process), watch::Seen::forbidden);
  EXPECT_TRUE(process.ends.empty());
  done.open();
}

TEST(WatchUser, ALeaseIsNotForWhoHasBecomeSomebodyElse) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  Gate ready;
  Gate change;
  Gate changed;
  Gate done;
  const Child child([&] {
    become(kSomebody);
    const Entry own({.kind = Kind::ring, .role = Role::client});
    ready.open();
    done.wait();
    return own.get()->sent.watch == 0 ? 0 : 1;
  });
  ready.wait();
  watch::Process process;
  ASSERT_EQ(look_patiently(child.pid(), process), watch::Seen::yes);
  ASSERT_EQ(process.ends.size(), 1U);
  const std::vector<watch::Lease> lease{
      {.word = watch::Lease::Word::watch, .end = &process.ends[0], .sampling = 0}};
  // As it was seen, its user was another.
  process.user = kSomebodyElse;
  EXPECT_EQ(watch::renew(process, lease, std::chrono::seconds(1)), 0U);
  process.user = kSomebody;
  process.started += 1;
  EXPECT_EQ(watch::renew(process, lease, std::chrono::seconds(1)), 0U);
  done.open();
  EXPECT_EQ(const_cast<Child&>(child).wait(), 0);
}

}  // namespace
}  // namespace farcall::test
