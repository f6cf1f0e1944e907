// SPDX-License-Identifier: Apache-2.0
//
// <synch.h>: what Solaris says of its locks, held against ours.
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <signal.h>
#include <synch.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "harness/child.hpp"
#include "harness/thread_state.hpp"

namespace {

constexpr timestruc_t kBriefly{.tv_sec = 0, .tv_nsec = 20'000'000};

timestruc_t briefly_from_now() {
  timestruc_t at{};
  clock_gettime(CLOCK_REALTIME, &at);
  at.tv_nsec += kBriefly.tv_nsec;
  at.tv_sec += at.tv_nsec / 1'000'000'000;
  at.tv_nsec %= 1'000'000'000;
  return at;
}

int in_another_thread(int (*call)(mutex_t*), mutex_t* mutex) {
  int error = -1;
  std::thread([&] { error = call(mutex); }).join();
  return error;
}

TEST(Locks, AZeroedMutexExcludesOthers) {
  static mutex_t mutex;
  ASSERT_EQ(mutex_lock(&mutex), 0);
  EXPECT_EQ(in_another_thread(&mutex_trylock, &mutex), EBUSY);
  ASSERT_EQ(mutex_unlock(&mutex), 0);
  EXPECT_EQ(mutex_trylock(&mutex), 0);
  EXPECT_EQ(mutex_unlock(&mutex), 0);
}

TEST(Locks, AnErrorCheckingMutexKnowsItsOwner) {
  mutex_t mutex;
  ASSERT_EQ(mutex_init(&mutex, USYNC_THREAD | LOCK_ERRORCHECK, nullptr), 0);
  ASSERT_EQ(mutex_lock(&mutex), 0);
  EXPECT_EQ(mutex_lock(&mutex), EDEADLK);
#ifndef __SANITIZE_THREAD__  // which reports this misuse by itself
  EXPECT_EQ(in_another_thread(&mutex_unlock, &mutex), EPERM);
#endif
  EXPECT_EQ(mutex_unlock(&mutex), 0);
  mutex_destroy(&mutex);
}

TEST(Locks, ARecursiveMutexCounts) {
  mutex_t mutex;
  ASSERT_EQ(mutex_init(&mutex, USYNC_THREAD | LOCK_RECURSIVE, nullptr), 0);
  ASSERT_EQ(mutex_lock(&mutex), 0);
  ASSERT_EQ(mutex_lock(&mutex), 0);
  ASSERT_EQ(mutex_unlock(&mutex), 0);
  EXPECT_EQ(in_another_thread(&mutex_trylock, &mutex), EBUSY);
  ASSERT_EQ(mutex_unlock(&mutex), 0);
  EXPECT_EQ(mutex_destroy(&mutex), 0);
}

TEST(Locks, UnknownTypesAreRefused) {
  mutex_t mutex;
  EXPECT_EQ(mutex_init(&mutex, 0x1000, nullptr), EINVAL);
  EXPECT_EQ(mutex_init(&mutex, LOCK_PRIO_PROTECT, nullptr), EINVAL);
  cond_t condition;
  EXPECT_EQ(cond_init(&condition, 2, nullptr), EINVAL);
  rwlock_t lock;
  EXPECT_EQ(rwlock_init(&lock, 2, nullptr), EINVAL);
  sema_t semaphore;
  EXPECT_EQ(sema_init(&semaphore, 0, 2, nullptr), EINVAL);
}

// Who waits for such a mutex does so by another operation of the kernel's, which knows the owner.
TEST(Locks, AMutexThatInheritsThePriorityOfWhoWaitsIsTheKernels) {
  mutex_t mutex;
  ASSERT_EQ(mutex_init(&mutex, LOCK_PRIO_INHERIT, nullptr), 0);
  ASSERT_EQ(mutex_lock(&mutex), 0);
  std::atomic<pid_t> task{0};
  std::thread waits([&] {
    task = gettid();
    EXPECT_EQ(mutex_lock(&mutex), 0);
    EXPECT_EQ(mutex_unlock(&mutex), 0);
  });
  const auto operation = [&] {
    std::ifstream file("/proc/self/task/" + std::to_string(task) + "/syscall");
    long number = -1;
    unsigned long address = 0;
    unsigned long what = 0;
    file >> number >> std::hex >> address >> what;
    if (number != SYS_futex || address != reinterpret_cast<std::uintptr_t>(&mutex)) return -1;
    return static_cast<int>(what) & FUTEX_CMD_MASK;
  };
  int seen = -1;
  EXPECT_TRUE(farcall::test::eventually([&] { return (seen = operation()) >= 0; }));
  EXPECT_TRUE(seen == FUTEX_LOCK_PI || seen == 13) << seen;  // 13: FUTEX_LOCK_PI2
  EXPECT_EQ(mutex_unlock(&mutex), 0);
  waits.join();
  EXPECT_EQ(mutex_destroy(&mutex), 0);
}

TEST(Locks, AMutexHasTheCeilingThatItIsGiven) {
  mutex_t mutex;
  int ceiling = 7;
  ASSERT_EQ(mutex_init(&mutex, LOCK_PRIO_PROTECT, &ceiling), 0);
  int found = -1;
  EXPECT_EQ(pthread_mutex_getprioceiling(&mutex, &found), 0);
  EXPECT_EQ(found, ceiling);
  EXPECT_EQ(mutex_destroy(&mutex), 0);
}

template <class T>
class SharedBetweenProcesses {
 public:
  SharedBetweenProcesses()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~SharedBetweenProcesses() { munmap(memory_, sizeof(T)); }
  SharedBetweenProcesses(const SharedBetweenProcesses&) = delete;
  SharedBetweenProcesses& operator=(const SharedBetweenProcesses&) = delete;
  T* get() { return static_cast<T*>(memory_); }

 private:
  void* memory_;
};

int exit_code(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Locks, ARobustMutexTellsThatItsOwnerDied) {
  SharedBetweenProcesses<mutex_t> shared;
  ASSERT_EQ(mutex_init(shared.get(), USYNC_PROCESS_ROBUST, nullptr), 0);
  const pid_t child = fork();
  if (child == 0) _exit(mutex_lock(shared.get()));
  ASSERT_EQ(exit_code(child), 0);
  ASSERT_EQ(mutex_lock(shared.get()), EOWNERDEAD);
  EXPECT_EQ(mutex_consistent(shared.get()), 0);
  EXPECT_EQ(mutex_unlock(shared.get()), 0);
  EXPECT_EQ(mutex_lock(shared.get()), 0);
  EXPECT_EQ(mutex_unlock(shared.get()), 0);
}

TEST(Locks, AConditionThatNobodySignalsTimesOutWithETIME) {
  mutex_t mutex = DEFAULTMUTEX;
  cond_t condition = DEFAULTCV;
  ASSERT_EQ(mutex_lock(&mutex), 0);
  EXPECT_EQ(cond_reltimedwait(&condition, &mutex, &kBriefly), ETIME);
  const timestruc_t until = briefly_from_now();
  EXPECT_EQ(cond_timedwait(&condition, &mutex, &until), ETIME);
  EXPECT_EQ(mutex_unlock(&mutex), 0);
}

TEST(Locks, NobodyWaitsForWhatIsNoTime) {
  mutex_t mutex = DEFAULTMUTEX;
  cond_t condition = DEFAULTCV;
  sema_t semaphore;
  ASSERT_EQ(sema_init(&semaphore, 0, USYNC_THREAD, nullptr), 0);
  ASSERT_EQ(mutex_lock(&mutex), 0);
  constexpr timestruc_t kNone[] = {{-1, 0}, {0, -1}, {0, 1'000'000'000}};
  for (const timestruc_t& time : kNone) {
    EXPECT_EQ(cond_reltimedwait(&condition, &mutex, &time), EINVAL) << time.tv_nsec;
    EXPECT_EQ(sema_reltimedwait(&semaphore, &time), EINVAL) << time.tv_nsec;
  }
  EXPECT_EQ(mutex_unlock(&mutex), 0);
  EXPECT_EQ(sema_destroy(&semaphore), 0);
}

// The nanoseconds are more than are left of any second, so that a second is carried.
TEST(Locks, ATimeLastsAsLongAsItSays) {
  constexpr timestruc_t kAlmostASecond{.tv_sec = 0, .tv_nsec = 999'999'999};
  mutex_t mutex = DEFAULTMUTEX;
  cond_t condition = DEFAULTCV;
  sema_t semaphore;
  ASSERT_EQ(sema_init(&semaphore, 0, USYNC_THREAD, nullptr), 0);
  std::int64_t before = farcall::test::now_ns();
  EXPECT_EQ(sema_reltimedwait(&semaphore, &kAlmostASecond), ETIME);
  EXPECT_GE(farcall::test::now_ns() - before, kAlmostASecond.tv_nsec);
  ASSERT_EQ(mutex_lock(&mutex), 0);
  before = farcall::test::now_ns();
  int error = 0;
  while (error == 0) error = cond_reltimedwait(&condition, &mutex, &kAlmostASecond);
  EXPECT_EQ(error, ETIME);
  EXPECT_GE(farcall::test::now_ns() - before, kAlmostASecond.tv_nsec);
  EXPECT_EQ(mutex_unlock(&mutex), 0);
  EXPECT_EQ(sema_destroy(&semaphore), 0);
}

TEST(Locks, AConditionWakesOneOrAll) {
  mutex_t mutex = DEFAULTMUTEX;
  cond_t condition;
  ASSERT_EQ(cond_init(&condition, USYNC_THREAD, nullptr), 0);
  int tickets = 0;
  std::atomic<int> served{0};
  std::atomic<int> waiting{0};
  const auto wait = [&] {
    mutex_lock(&mutex);
    ++waiting;  // with the mutex, which the wait lets go of
    while (tickets == 0) cond_wait(&condition, &mutex);
    --tickets;
    ++served;
    mutex_unlock(&mutex);
  };
  std::thread first(wait);
  std::thread second(wait);
  mutex_lock(&mutex);
  tickets = 1;
  cond_signal(&condition);
  mutex_unlock(&mutex);
  while (served < 1) std::this_thread::yield();
  std::thread third(wait);
  while (waiting < 3) std::this_thread::yield();
  mutex_lock(&mutex);
  tickets = 2;
  cond_broadcast(&condition);
  mutex_unlock(&mutex);
  first.join();
  second.join();
  third.join();
  EXPECT_EQ(served, 3);
  EXPECT_EQ(cond_destroy(&condition), 0);
}

TEST(Locks, ManyReadOneWrites) {
  rwlock_t lock = DEFAULTRWLOCK;
  ASSERT_EQ(rw_rdlock(&lock), 0);
  EXPECT_EQ(rw_tryrdlock(&lock), 0);
  int error = -1;
  std::thread([&] { error = rw_trywrlock(&lock); }).join();
  EXPECT_EQ(error, EBUSY);
  ASSERT_EQ(rw_unlock(&lock), 0);
  ASSERT_EQ(rw_unlock(&lock), 0);
  ASSERT_EQ(rw_wrlock(&lock), 0);
  std::thread([&] { error = rw_tryrdlock(&lock); }).join();
  EXPECT_EQ(error, EBUSY);
  ASSERT_EQ(rw_unlock(&lock), 0);
  EXPECT_EQ(rwlock_destroy(&lock), 0);
  ASSERT_EQ(rwlock_init(&lock, USYNC_PROCESS, nullptr), 0);
  EXPECT_EQ(rwlock_destroy(&lock), 0);
}

TEST(Locks, ASemaphoreCountsAndLeavesErrnoAlone) {
  sema_t semaphore;
  ASSERT_EQ(sema_init(&semaphore, 1, USYNC_THREAD, nullptr), 0);
  errno = E2BIG;
  EXPECT_EQ(sema_wait(&semaphore), 0);
  EXPECT_EQ(sema_trywait(&semaphore), EBUSY);
  EXPECT_EQ(sema_reltimedwait(&semaphore, &kBriefly), ETIME);
  const timestruc_t until = briefly_from_now();
  EXPECT_EQ(sema_timedwait(&semaphore, &until), ETIME);
  EXPECT_EQ(errno, E2BIG);
  EXPECT_EQ(sema_post(&semaphore), 0);
  EXPECT_EQ(sema_trywait(&semaphore), 0);
  EXPECT_EQ(sema_destroy(&semaphore), 0);
}

// What `wait` returns in another process, which sleeps there before `wake` is called here.
template <class Wait, class Wake>
int woken_in_another_process(Wait wait, Wake wake) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(wait());
  }
  while (!farcall::test::is_asleep(child) && kill(child, 0) == 0) usleep(1000);
  wake();
  return exit_code(child);
}

TEST(Locks, ASemaphoreWakesAnotherProcess) {
  SharedBetweenProcesses<sema_t> shared;
  ASSERT_EQ(sema_init(shared.get(), 0, USYNC_PROCESS, nullptr), 0);
  EXPECT_EQ(woken_in_another_process([&] { return sema_wait(shared.get()); },
                                     [&] { EXPECT_EQ(sema_post(shared.get()), 0); }),
            0);
}

TEST(Locks, AConditionWakesAnotherProcess) {
  struct Told {
    mutex_t mutex;
    cond_t condition;
    bool told;
  };
  SharedBetweenProcesses<Told> shared;
  Told& told = *shared.get();
  ASSERT_EQ(mutex_init(&told.mutex, USYNC_PROCESS, nullptr), 0);
  ASSERT_EQ(cond_init(&told.condition, USYNC_PROCESS, nullptr), 0);
  const auto wait = [&] {
    int error = mutex_lock(&told.mutex);
    while (error == 0 && !told.told) error = cond_wait(&told.condition, &told.mutex);
    return error;
  };
  const auto wake = [&] {
    EXPECT_EQ(mutex_lock(&told.mutex), 0);
    told.told = true;
    EXPECT_EQ(cond_signal(&told.condition), 0);
    EXPECT_EQ(mutex_unlock(&told.mutex), 0);
  };
  EXPECT_EQ(woken_in_another_process(wait, wake), 0);
}

TEST(Locks, AMutexWakesAnotherProcess) {
  SharedBetweenProcesses<mutex_t> shared;
  ASSERT_EQ(mutex_init(shared.get(), USYNC_PROCESS, nullptr), 0);
  ASSERT_EQ(mutex_lock(shared.get()), 0);
  EXPECT_EQ(woken_in_another_process([&] { return mutex_lock(shared.get()); },
                                     [&] { EXPECT_EQ(mutex_unlock(shared.get()), 0); }),
            0);
}

TEST(Locks, WhoWritesWakesWhoReadsInAnotherProcess) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  SharedBetweenProcesses<rwlock_t> shared;
  ASSERT_EQ(rwlock_init(shared.get(), USYNC_PROCESS, nullptr), 0);
  ASSERT_EQ(rw_wrlock(shared.get()), 0);
  EXPECT_EQ(woken_in_another_process([&] { return rw_rdlock(shared.get()); },
                                     [&] { EXPECT_EQ(rw_unlock(shared.get()), 0); }),
            0);
}

}  // namespace
