// SPDX-License-Identifier: Apache-2.0
//
// Programs that give up rights: that become another user, or leave their places.
// The tests run as those of contract_test.cpp do.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>

#include "calls.hpp"
#include "children.hpp"
#include "executed.hpp"
#include "farcall/memory.hpp"
#include "preload/real.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {
namespace {

// --- becoming somebody else

// One with loopback addresses of its own.
int enter_another_network() {
  if (::unshare(CLONE_NEWNET) != 0) return -1;
  const UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  return ::ioctl(any.get(), SIOCSIFFLAGS, &loopback);
}

TEST(TcpCalls, WhoBecomesSomebodyElseLeavesWhatItHasAndBeginsAnew) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root becomes somebody else";
  constexpr auto kAsItIs = static_cast<uid_t>(-1);
  const std::function<int()> ways[] = {
      [] { return ::setgid(4711); },
      [] { return ::setegid(4711); },
      [] { return ::setuid(4711); },
      [] { return ::seteuid(4711); },
      [] { return ::setresuid(4711, 4711, 4711); },
      [] { return ::setresuid(kAsItIs, kAsItIs, 4711); },
      [] { return ::setresgid(kAsItIs, kAsItIs, 4711); },
      [] { return ::setreuid(4711, 4711); },
      [] { return ::setregid(4711, 4711); },
      [] { return static_cast<int>(::syscall(SYS_setresuid, 4711, 4711, 4711)); },
      [] { return static_cast<int>(::syscall(SYS_setuid, 4711)); },
      [] { return static_cast<int>(::syscall(SYS_setgid, 4711)); },
      [] { return static_cast<int>(::syscall(SYS_setreuid, 4711, 4711)); },
      [] { return static_cast<int>(::syscall(SYS_setregid, 4711, 4711)); },
      [] { return static_cast<int>(::syscall(SYS_setresgid, 4711, 4711, 4711)); },
      [] { return static_cast<int>(::syscall(SYS_chroot, "/")); },
      [] {
        const UniqueFd same(::open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC));
        return static_cast<int>(::syscall(SYS_setns, same.get(), 0));
      },
      [] { return ::chroot("/"); },
      [] { return ::unshare(CLONE_NEWNS); },
      enter_another_network,
      [] { return ::setns(UniqueFd(::open("/proc/self/ns/uts", O_RDONLY | O_CLOEXEC)).get(), 0); },
  };
  for (const auto& way : ways)
    EXPECT_EQ(exit_status(in_child([&] {
                const UsedPair pair;
                if (way() != 0) return;  // not everything may be done everywhere
                const std::uint64_t before = sent_by_kernel(pair.client.get());
                EXPECT_EQ(send(pair.client.get(), "by the kernel"), "13");
                EXPECT_EQ(receive(pair.server.get()), "by the kernel");
                // Also again, where the acknowledgement comes late.
                EXPECT_GE(sent_by_kernel(pair.client.get()), before + 13);
                const Pair later;  // asserts that it is accelerated
              })),
              0)
        << "way " << &way - ways;
}

struct Ids {
  unsigned real, effective, saved;
  bool operator==(const Ids&) const = default;
};
Ids user_ids() {
  Ids ids{};
  ::getresuid(&ids.real, &ids.effective, &ids.saved);
  return ids;
}
Ids group_ids() {
  Ids ids{};
  ::getresgid(&ids.real, &ids.effective, &ids.saved);
  return ids;
}
bool is_only_in_group(gid_t group) {
  gid_t groups[8] = {};
  return ::getgroups(8, groups) == 1 && groups[0] == group;
}

// What the kernel is asked for is what the program has asked for.
TEST(Calls, WhoBecomesSomebodyElseIsThat) {
  constexpr Ids kRoot{0, 0, 0};
  if (user_ids() != kRoot || group_ids() != kRoot)
    GTEST_SKIP() << "only root becomes somebody else";
  constexpr auto kAsItIs = static_cast<unsigned>(-1);
  const gid_t group = 4711;
  struct Change {
    std::function<int()> make;
    std::function<bool()> is_made;
  };
  const auto users = [](Ids ids) { return [=] { return user_ids() == ids; }; };
  const auto groups = [](Ids ids) { return [=] { return group_ids() == ids; }; };
  const Change changes[] = {
      {[] { return ::setuid(4711); }, users({4711, 4711, 4711})},
      {[] { return ::seteuid(4711); }, users({0, 4711, 0})},
      {[] { return ::setreuid(4711, kAsItIs); }, users({4711, 0, 0})},
      {[] { return ::setresuid(4711, 4712, 4713); }, users({4711, 4712, 4713})},
      {[] { return ::setgid(4711); }, groups({4711, 4711, 4711})},
      {[] { return ::setegid(4711); }, groups({0, 4711, 0})},
      {[] { return ::setregid(4711, kAsItIs); }, groups({4711, 0, 0})},
      {[] { return ::setresgid(4711, 4712, 4713); }, groups({4711, 4712, 4713})},
      {[&] { return ::setgroups(1, &group); }, [] { return is_only_in_group(4711); }},
      {[] { return ::initgroups("nobody at all", 4711); }, [] { return is_only_in_group(4711); }},
  };
  for (const Change& change : changes)
    EXPECT_EQ(exit_status(in_child([&] {
                if (change.make() != 0) return;  // not everything may be done everywhere
                EXPECT_TRUE(change.is_made());
              })),
              0)
        << "change " << &change - changes;
}

TEST(TcpCalls, WhoStaysTheSameKeepsWhatItHas) {
  EXPECT_EQ(exit_status(in_child([] {
              const Pair pair;
              ASSERT_EQ(::setresuid(::getuid(), ::geteuid(), static_cast<uid_t>(-1)), 0);
              ASSERT_EQ(::setegid(::getegid()), 0);
              // Ends that wait for each other.
              constexpr int kRounds = 200;
              std::thread echo([&] {
                char bytes[4];
                for (int i = 0; i < kRounds; ++i) {
                  EXPECT_EQ(::recv(pair.server.get(), bytes, 4, MSG_WAITALL), 4);
                  EXPECT_EQ(::send(pair.server.get(), bytes, 4, 0), 4);
                }
              });
              const std::uint64_t before = sent_by_kernel(pair.client.get());
              char bytes[4];
              for (int i = 0; i < kRounds; ++i) {
                EXPECT_EQ(::send(pair.client.get(), "ping", 4, 0), 4);
                EXPECT_EQ(::recv(pair.client.get(), bytes, 4, MSG_WAITALL), 4);
              }
              echo.join();
              // On a busy machine each of them may have found its reader asleep, to whom the kernel
              // brings it: then these, of which only the end is waited for, go by memory.
              const auto kept = [&] {
                const std::uint64_t now = sent_by_kernel(pair.client.get());
                pair.put("ping");
                EXPECT_EQ(receive(pair.server.get()), "ping");
                return sent_by_kernel(pair.client.get()) == now;
              };
              if (preloaded() && sent_by_kernel(pair.client.get()) - before >= 4 * kRounds) {
                EXPECT_EQ(stream_mappings(), 2);
                bool any = false;
                for (int i = 0; i < 10'000 && !any; ++i) any = kept();
                EXPECT_TRUE(any);
              }
            })),
            0);
}

// --- children elsewhere

// A child that does `work`, made so; -1 where that may not be done here.
struct WayToMakeAChild {
  const char* name;
  pid_t (*make)(unsigned long flags, const std::function<void()>& work);
};

[[noreturn]] void work_in_child(const std::function<void()>& work) {
  ::alarm(60);
  work();
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

const WayToMakeAChild kWaysToMakeAChild[] = {
    {"clone",
     [](unsigned long flags, const std::function<void()>& work) {
       alignas(16) static char stack[1 << 18];
       const auto begin = [](void* what) -> int {
         work_in_child(*static_cast<const std::function<void()>*>(what));
       };
       return ::clone(begin, stack + sizeof stack, static_cast<int>(flags) | SIGCHLD,
                      const_cast<std::function<void()>*>(&work));
     }},
    {"SYS_clone",
     [](unsigned long flags, const std::function<void()>& work) {
       const auto child =
           static_cast<pid_t>(::syscall(SYS_clone, flags | SIGCHLD, nullptr, nullptr, nullptr, 0));
       if (child == 0) work_in_child(work);
       return child;
     }},
    {"SYS_clone3",
     [](unsigned long flags, const std::function<void()>& work) {
       clone_args how{};
       how.flags = flags;
       how.exit_signal = SIGCHLD;
       const auto child = static_cast<pid_t>(::syscall(SYS_clone3, &how, sizeof how));
       if (child == 0) work_in_child(work);
       return child;
     }},
};

// The parent's numbers of threads mean nothing there, and say who holds a lock. So it shares none.
void expect_to_share_nothing(const Pair& pair,
                             const std::function<pid_t(std::function<void()>)>& make) {
  const std::uint64_t before = sent_by_kernel(pair.client.get());
  const pid_t child = make([&] {
    EXPECT_EQ(stream_mappings(), 0);
    pair.talk(3);
  });
  if (child < 0) return;
  EXPECT_EQ(exit_status(child), 0);
  pair.talk(3);
  EXPECT_GE(sent_by_kernel(pair.client.get()), before + 24);
  const Pair later;  // asserts that it is accelerated
}

TEST(TcpCalls, AChildOfAnotherPidNamespaceSharesNothing) {
  for (const WayToMakeAChild& way : kWaysToMakeAChild)
    EXPECT_EQ(exit_status(in_child([&] {
                const UsedPair pair;
                expect_to_share_nothing(pair, [&](const std::function<void()>& work) {
                  return way.make(CLONE_NEWPID, work);
                });
              })),
              0)
        << way.name;
}

TEST(TcpCalls, ChildrenOfAnotherPidNamespaceShareNothingOfWhatTheirParentBegan) {
  const std::function<int()> ways[] = {
      [] { return ::unshare(CLONE_NEWPID); },
      [] { return static_cast<int>(::syscall(SYS_unshare, CLONE_NEWPID)); },
      [] {
        // Of a child that has one.
        int ends[2];
        EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
        UniqueFd alive(ends[1]);
        const UniqueFd until(ends[0]);
        const pid_t there = kWaysToMakeAChild[1].make(CLONE_NEWPID, [&] {
          alive.reset();
          char byte;
          (void)kernel(SYS_read, until.get(), &byte, 1);
        });
        if (there < 0) return -1;
        const std::string path = "/proc/" + std::to_string(there) + "/ns/pid";
        const UniqueFd space(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        // It lives for as long as this process: the namespace ends with its first.
        (void)alive.release();
        return ::setns(space.get(), 0);
      },
  };
  for (const auto& way : ways)
    EXPECT_EQ(exit_status(in_child([&] {
                if (way() != 0) return;  // not everything may be done everywhere
                const UsedPair pair;
                expect_to_share_nothing(pair, [](const std::function<void()>& work) {
                  const pid_t child = ::fork();
                  if (child == 0) work_in_child(work);
                  return child;
                });
              })),
              0)
        << "way " << &way - ways;
}

// Two processes with one table of descriptors, of which each had its own idea.
TEST(TcpCalls, WhoSharesItsDescriptorsWithAChildLeavesWhatItHas) {
  for (const WayToMakeAChild& way : kWaysToMakeAChild)
    EXPECT_EQ(exit_status(in_child([&] {
                UsedPair pair;
                const std::uint64_t before = sent_by_kernel(pair.client.get());
                const pid_t child = way.make(CLONE_FILES, [&] {
                  pair.talk(3);
                  const int server = pair.server.release();
                  ::close(server);
                });
                ASSERT_GT(child, 0);
                EXPECT_EQ(exit_status(child), 0);
                EXPECT_EQ(receive(pair.client.get()), "(end)");
                EXPECT_LT(::fcntl(pair.server.release(), F_GETFD), 0);
                EXPECT_GE(sent_by_kernel(pair.client.get()), before + 12);
              })),
              0)
        << way.name;
}

}  // namespace
}  // namespace farcall::preload
