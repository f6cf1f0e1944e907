// SPDX-License-Identifier: Apache-2.0
//
// Forks, threads of the library's own, and signals.
#include "process/process.hpp"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>

#include "harness/child.hpp"
#include "process/identity.hpp"
#include "process/ledger.hpp"
#include "process/per_process.hpp"

namespace farcall::test {
namespace {

long sleeps_of_this_thread() {
  rusage used{};
  ::getrusage(RUSAGE_THREAD, &used);
  return used.ru_nvcsw;
}

// In a signal handler, say. It would wait for itself, a moment two thousand times.
TEST(Fork, ByWhoMakesDescriptorsDoesNotWaitForThat) {
  const process::NoFork guard;
  const long before = sleeps_of_this_thread();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  EXPECT_LT(sleeps_of_this_thread() - before, 500);
  ASSERT_GT(child, 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
}

// As long as another thread makes some, a fork waits, but not for ever.
TEST(Fork, WaitsForOthersThatMakeDescriptors) {
  std::atomic<bool> makes{false};
  std::atomic<bool> stop{false};
  std::thread other([&] {
    const process::NoFork guard;
    makes = true;
    eventually([&] { return stop.load(); });
  });
  ASSERT_TRUE(eventually([&] { return makes.load(); }));
  const std::int64_t start = monotonic_ns();
  const pid_t child = ::fork();
  if (child == 0) {
    // The other thread is the parent's.
    const long before = sleeps_of_this_thread();
    const pid_t grandchild = ::fork();
    ::_exit(grandchild >= 0 && sleeps_of_this_thread() - before < 500 ? 0 : 1);
  }
  EXPECT_GE(monotonic_ns() - start, 100'000'000);
  stop = true;
  other.join();
  ASSERT_GT(child, 0);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "a child waits for threads that it does not have";
}

// The thread that its parent had forked in makes some in its turn.
TEST(Fork, InAChildWaitsForOthersThatMakeDescriptors) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  in_child([] {
    const process::NoFork guard;
    std::thread([] {
      const std::int64_t start = monotonic_ns();
      const pid_t child = ::fork();
      if (child == 0) ::_exit(0);
      EXPECT_GE(monotonic_ns() - start, 100'000'000);
      EXPECT_EQ(::waitpid(child, nullptr, 0), child);
    }).join();
  });
}

struct Seen {
  std::atomic<bool> all_blocked{false};
  std::atomic<bool> cancellable{true};
  std::string name;
  std::atomic<bool> done{false};
};

void look(void* argument) {
  Seen& seen = *static_cast<Seen*>(argument);
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  bool all = true;
  for (const int signal : {SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGALRM, SIGCHLD, SIGIO, SIGRTMIN})
    all = all && ::sigismember(&blocked, signal) == 1;
  seen.all_blocked = all;
  int before = 0;
  ::pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  seen.cancellable = before != PTHREAD_CANCEL_DISABLE;
  std::array<char, 16> name{};
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  seen.name = name.data();
  seen.done = true;
}

// Signals are for the program's threads: those of the library would run its handlers where nobody
// expects that, and nobody's wait would end.
TEST(LibraryThread, TakesNoSignalsAndIsNotCancelled) {
  auto& seen = lasting<Seen>();
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &before);
  ASSERT_EQ(process::start_thread("farcall-looks", look, &seen), 0);
  ASSERT_TRUE(eventually([&] { return seen.done.load(); }));
  EXPECT_TRUE(seen.all_blocked);
  EXPECT_FALSE(seen.cancellable);
  EXPECT_EQ(seen.name, "farcall-looks");
  sigset_t after;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < SIGRTMAX; ++signal)
    EXPECT_EQ(::sigismember(&after, signal), ::sigismember(&before, signal)) << signal;
}

// Who is interrupted although it catches none was stopped and continued.
TEST(Signals, CountAsCaughtWhereTheyHaveAHandlerAndAreNotBlocked) {
  sigset_t all;
  ::sigfillset(&all);
  sigset_t before;
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  struct sigaction action {};
  action.sa_handler = [](int) {};
  struct sigaction old {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &old), 0);
  EXPECT_FALSE(process::catches_uncounted_signals());
  sigset_t only;
  ::sigemptyset(&only);
  ::sigaddset(&only, SIGUSR1);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  EXPECT_TRUE(process::catches_uncounted_signals());
  action.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, nullptr), 0);
  EXPECT_FALSE(process::catches_uncounted_signals());
  ASSERT_EQ(::sigaction(SIGUSR1, &old, nullptr), 0);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// ---- made once, seen whole: what two threads order by nothing but that ----

struct MadeWhole {
  int value = 7;
};

// `make` and `look` on two threads; that the one has been is said in a way that orders nothing.
template <class Make, class Look>
void in_no_order(Make make, Look look) {
  std::atomic<bool> made{false};
  std::thread other([&] {
    while (!made.load(std::memory_order_relaxed)) std::this_thread::yield();
    look();
  });
  make();
  made.store(true, std::memory_order_relaxed);
  other.join();
}

TEST(MadeOnce, IsSeenWholeByWhoeverFindsIt) {
  static constinit process::MadeOnce<MadeWhole> once;
  in_no_order([] { EXPECT_EQ(once.get().value, 7); }, [] { EXPECT_EQ(once.get().value, 7); });
}

TEST(PerProcess, IsSeenWholeByWhoeverFindsIt) {
  struct Own : MadeWhole {};
  in_no_order([] { EXPECT_EQ(process::PerProcess<Own>::here().value, 7); },
              [] { EXPECT_EQ(process::PerProcess<Own>::here().value, 7); });
}

TEST(PerProcess, IsAnotherOneInAChild) {
  struct Own : MadeWhole {};
  process::PerProcess<Own>::here().value = 8;
  Own* const parents = &process::PerProcess<Own>::here();
  in_child([&] {
    EXPECT_NE(&process::PerProcess<Own>::here(), parents);
    EXPECT_EQ(process::PerProcess<Own>::here().value, 7);
  });
  EXPECT_EQ(&process::PerProcess<Own>::here(), parents);
  EXPECT_EQ(parents->value, 8);
}

TEST(OwnUser, IsOnlyWhoTheProcessIsAltogether) {
  if (!is_root()) GTEST_SKIP() << "only root can become somebody else";
  EXPECT_TRUE(process::is_only(0));
  const uid_t user = kNobody;
  const auto is_own_as = [user](uid_t real, uid_t effective, uid_t saved) {
    const Shared<std::atomic<bool>> own;
    in_child([&] {
      ASSERT_EQ(::setresuid(real, effective, saved), 0);
      EXPECT_TRUE(process::is_own(0));
      *own = process::is_own(user);
      EXPECT_EQ(process::is_only(user), *own);
    });
    return own->load();
  };
  EXPECT_TRUE(is_own_as(user, user, user));
  EXPECT_FALSE(is_own_as(0, user, 0));
  EXPECT_FALSE(is_own_as(user, user, 0));
  EXPECT_FALSE(is_own_as(0, user, user));
  EXPECT_FALSE(is_own_as(user, 0, user));
}

}  // namespace
}  // namespace farcall::test
