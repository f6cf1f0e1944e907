// SPDX-License-Identifier: Apache-2.0
#include "preload/lock.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

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
}

}  // namespace
}  // namespace farcall::preload
