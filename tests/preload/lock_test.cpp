// SPDX-License-Identifier: Apache-2.0
#include "preload/lock.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

namespace farcall::preload {
namespace {

// A lock that this process and its children share.
Lock& shared_lock() {
  void* const memory =
      ::mmap(nullptr, sizeof(Lock), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  return *new (memory) Lock;
}

// Takes the lock and ends with it.
pid_t die_with(Lock& lock) {
  const pid_t child = ::fork();
  if (child == 0) {
    known_thread = 0;
    lock.lock();
    ::_exit(0);
  }
  siginfo_t ended{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  return child;
}

TEST(Lock, IsTakenFromAProcessThatHasDied) {
  Lock& lock = shared_lock();
  const pid_t child = die_with(lock);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(lock.lock());
  lock.unlock();
}

TEST(Lock, IsTakenFromAProcessThatNobodyHasWaitedForYet) {
  Lock& lock = shared_lock();
  const pid_t child = die_with(lock);
  EXPECT_TRUE(lock.lock());
  lock.unlock();
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(Lock, IsNotTakenTwiceByOneThread) {
  Lock& lock = shared_lock();
  EXPECT_TRUE(lock.lock());
  EXPECT_FALSE(lock.lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

// A copy of this process that the C library does not see: it goes by the number of the thread that
// it was made of.
template <class Work>
pid_t copy(Work work) {
  (void)this_thread();
  const auto child = static_cast<pid_t>(kernel(SYS_clone, SIGCHLD, 0, 0, 0));
  if (child == 0) kernel(SYS_exit_group, work() ? 0 : 1);
  return child;
}

TEST(Lock, ThatTheOriginalHoldsIsNoReasonForACopyToFail) {
  Lock& lock = shared_lock();
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = copy([&] {
    char byte;
    if (kernel(SYS_read, ends[0], &byte, 1) != 1 || !lock.lock()) return false;
    lock.unlock();
    return true;
  });
  ASSERT_GT(child, 0);
  ASSERT_TRUE(lock.lock());
  EXPECT_EQ(::write(ends[1], "x", 1), 1);
  ::usleep(20'000);
  lock.unlock();
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(Lock, IsTakenFromACopyThatHasDiedWithIt) {
  Lock& lock = shared_lock();
  const pid_t child = copy([&] { return lock.lock(); });
  ASSERT_GT(child, 0);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(lock.lock());
  lock.unlock();
}

}  // namespace
}  // namespace farcall::preload
