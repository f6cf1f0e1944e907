// SPDX-License-Identifier: Apache-2.0
#include "process/process_mutex.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "message/channel.hpp"

namespace farcall::message::test {
namespace {

using process::ProcessMutex;

TEST(ProcessMutex, OneThreadAtATimeHasIt) {
  ProcessMutex mutex;
  long count = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      for (int j = 0; j < 20'000; ++j) {
        const std::lock_guard guard(mutex);
        ++count;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 80'000);
  EXPECT_TRUE(mutex.try_lock());
  EXPECT_FALSE(mutex.try_lock());
  mutex.unlock();
}

// One of them is woken, and has the other woken in turn.
TEST(ProcessMutex, AllWhoSleepGetItInTheEnd) {
  struct Waiters {
    process::ProcessMutex mutex;
    std::array<std::atomic<pid_t>, 3> threads{};
    std::atomic<int> done{0};
  };
  auto& waiters = lasting<Waiters>();
  waiters.mutex.lock();
  for (std::atomic<pid_t>& thread : waiters.threads)
    std::thread([&waiters, &thread] {
      thread = own_id();
      waiters.mutex.lock();
      waiters.mutex.unlock();
      ++waiters.done;
    }).detach();
  for (const std::atomic<pid_t>& thread : waiters.threads) ASSERT_TRUE(sleeps(thread));
  EXPECT_EQ(waiters.done, 0);
  waiters.mutex.unlock();
  EXPECT_TRUE(eventually([&] { return waiters.done == 3; })) << waiters.done;
}

TEST(ProcessMutex, AChildFindsItFreeWhoeverHeldIt) {
  ProcessMutex mutex;
  Event held;
  Event done;
  std::thread holder([&] {
    const std::lock_guard guard(mutex);
    held.happens();
    EXPECT_TRUE(done.wait());
  });
  ASSERT_TRUE(held.wait());
  in_child([&] {
    EXPECT_TRUE(mutex.try_lock());
    EXPECT_FALSE(mutex.try_lock());
    // And so does its own child.
    in_child([&] { mutex.lock(); });
    mutex.unlock();
    mutex.lock();
  });
  EXPECT_FALSE(mutex.try_lock());
  done.happens();
  holder.join();
  EXPECT_TRUE(mutex.try_lock());
}

TEST(ProcessMutex, ARealTimeThreadLetsAnOrdinaryHolderRun) {
  const Shared<std::atomic<int>> outcome;
  in_child([&] {
    // All on one processor, which the urgent one never gives away while it can run.
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
    ::sched_setaffinity(0, sizeof one, &one);
    ProcessMutex mutex;
    Event held;
    std::atomic<bool> comes{false};
    std::thread holder([&] {
      const std::lock_guard guard(mutex);
      held.happens();
      while (!comes) ::sched_yield();
    });
    ASSERT_TRUE(held.wait());
    std::thread urgent([&] {
      const sched_param real_time{.sched_priority = 1};
      if (::sched_setscheduler(0, SCHED_FIFO, &real_time) != 0) {
        *outcome = 2;
        comes = true;
        return;
      }
      rusage before{};
      rusage after{};
      ::getrusage(RUSAGE_THREAD, &before);
      comes = true;
      const std::lock_guard guard(mutex);
      ::getrusage(RUSAGE_THREAD, &after);
      EXPECT_GT(after.ru_nvcsw, before.ru_nvcsw) << "it has not slept";
      *outcome = 1;
    });
    urgent.join();
    holder.join();
  });
  if (*outcome == 2) GTEST_SKIP() << "no permission for real time";
  EXPECT_EQ(*outcome, 1);
}

}  // namespace
}  // namespace farcall::message::test
