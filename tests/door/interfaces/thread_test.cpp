// SPDX-License-Identifier: Apache-2.0
//
// <thread.h> and gethrtime(): what Solaris says of its threads, held against ours.
#include <errno.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <thread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "harness/child.hpp"
#include "harness/thread_state.hpp"

namespace {

void* give_back(void* argument) { return argument; }
void* number(std::intptr_t value) { return reinterpret_cast<void*>(value); }

void* wait_for(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) thr_yield();
  return nullptr;
}

TEST(Threads, AThreadIsJoinedWithWhatItReturned) {
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &give_back, number(7), THR_BOUND | THR_NEW_LWP, &thread), 0);
  thread_t departed = 0;
  void* status = nullptr;
  ASSERT_EQ(thr_join(thread, &departed, &status), 0);
  EXPECT_EQ(departed, thread);
  EXPECT_EQ(status, number(7));
}

TEST(Threads, AThreadThatExitsIsJoinedWithItsStatus) {
  thread_t thread = 0;
  const auto leave = [](void* argument) -> void* { thr_exit(argument); };
  ASSERT_EQ(thr_create(nullptr, 0, leave, number(8), 0, &thread), 0);
  void* status = nullptr;
  ASSERT_EQ(thr_join(thread, nullptr, &status), 0);
  EXPECT_EQ(status, number(8));
}

TEST(Threads, ThreadsOfBothKindsAreOneKind) {
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &give_back, number(1), 0, &thread), 0);
  void* status = nullptr;
  ASSERT_EQ(pthread_join(thread, &status), 0);
  pthread_t other{};
  ASSERT_EQ(pthread_create(&other, nullptr, &give_back, number(2)), 0);
  ASSERT_EQ(thr_join(other, nullptr, &status), 0);
  EXPECT_EQ(status, number(2));
}

// The memory of one with a large stack is given back when it is joined.
TEST(Threads, OneThatIsJoinedIsNotThereToBeJoinedAgain) {
  FARCALL_SKIP_UNDER_ASAN("ends who joins a thread twice");
  FARCALL_SKIP_UNDER_TSAN("ends who joins a thread twice");
  for (const std::size_t stack : {std::size_t{0}, std::size_t{100} << 20}) {
    thread_t thread = 0;
    ASSERT_EQ(thr_create(nullptr, stack, &give_back, nullptr, 0, &thread), 0);
    ASSERT_EQ(thr_join(thread, nullptr, nullptr), 0);
    EXPECT_EQ(thr_join(thread, nullptr, nullptr), ESRCH) << stack;
  }
}

// The same for all who want something of a thread.
TEST(Threads, OneThatIsGoneCannotBeSignalled) {
  FARCALL_SKIP_UNDER_ASAN("ends who names a thread that is gone");
  FARCALL_SKIP_UNDER_TSAN("ends who names a thread that is gone");
  int priority = 0;
  for (const std::size_t stack : {std::size_t{0}, std::size_t{100} << 20}) {
    thread_t thread = 0;
    ASSERT_EQ(thr_create(nullptr, stack, &give_back, nullptr, 0, &thread), 0);
    ASSERT_EQ(thr_join(thread, nullptr, nullptr), 0);
    EXPECT_EQ(thr_kill(thread, 0), ESRCH) << stack;
    EXPECT_EQ(thr_getprio(thread, &priority), ESRCH) << stack;
    EXPECT_EQ(thr_setprio(thread, 0), ESRCH) << stack;
  }
  EXPECT_EQ(thr_kill(thr_self(), 0), 0);
  EXPECT_EQ(thr_getprio(thr_self(), &priority), 0);
}

TEST(Threads, OneThatHasEndedCannotBeSignalled) {
  std::atomic<bool> go{true};
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &wait_for, &go, 0, &thread), 0);
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
       thr_kill(thread, 0) == 0 && std::chrono::steady_clock::now() < end;)
    thr_yield();
  EXPECT_EQ(thr_kill(thread, 0), ESRCH);
  EXPECT_EQ(thr_join(thread, nullptr, nullptr), 0);
}

TEST(Threads, JoiningAnyTakesEachOnceAndThenFindsNone) {
  // One that pthread_join() took behind our back would stay in the list; see the test above.
  const pid_t child = fork();
  if (child == 0) {
    std::set<thread_t> made;
    for (int i = 0; i < 5; ++i) {
      thread_t thread = 0;
      if (thr_create(nullptr, 0, &give_back, nullptr, 0, &thread) != 0) _exit(1);
      made.insert(thread);
    }
    thread_t departed = 0;
    std::set<thread_t> joined;
    while (thr_join(0, &departed, nullptr) == 0) joined.insert(departed);
    _exit(joined == made ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(Threads, DetachedThreadsAreNotJoined) {
  std::atomic<bool> go{false};
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &wait_for, &go, THR_DETACHED, &thread), 0);
  EXPECT_EQ(thr_join(thread, nullptr, nullptr), ESRCH);
  go = true;
  // The flag lives on this stack, so see the thread off.
  while (thr_continue(thread) == 0) thr_yield();
}

TEST(Threads, DetachedThreadsOfPthreadsAreNotJoined) {
  FARCALL_SKIP_UNDER_ASAN("ends who joins a detached thread");
  FARCALL_SKIP_UNDER_TSAN("ends who joins a detached thread");
  static std::atomic<bool> go{false};
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, nullptr, &wait_for, &go), 0);
  ASSERT_EQ(pthread_detach(thread), 0);
  EXPECT_EQ(thr_join(thread, nullptr, nullptr), ESRCH);
  go = true;
}

// Whom another thread waits for is not there to be joined.
TEST(Threads, JoiningAnyDoesNotWaitForOneThatIsBeingJoined) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const pid_t child = fork();  // where there are no other threads
  if (child == 0) {
    alarm(30);
    static std::atomic<bool> over{false};
    static thread_t thread = 0;
    static std::atomic<pid_t> joiner{0};
    if (thr_create(nullptr, 0, &wait_for, &over, 0, &thread) != 0) _exit(1);
    const auto join = [](void*) -> void* {
      joiner = gettid();
      return number(thr_join(thread, nullptr, nullptr));
    };
    pthread_t joins{};
    if (pthread_create(&joins, nullptr, join, nullptr) != 0) _exit(2);
    while (joiner == 0 || !farcall::test::is_asleep(joiner)) thr_yield();
    if (thr_join(0, nullptr, nullptr) != ESRCH) _exit(3);
    if (thr_join(thread, nullptr, nullptr) != ESRCH) _exit(4);
    over = true;
    void* error = nullptr;
    _exit(pthread_join(joins, &error) == 0 && error == nullptr ? 0 : 5);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// One that has ended, but for the destructor of a key; while others go on.
TEST(Threads, WhoseJoinIsCancelledIsThereForWhoJoinsAny) {
  FARCALL_SKIP_UNDER_TSAN(FARCALL_TSAN_CHILD);
  const pid_t child = fork();  // where there are no other threads
  if (child == 0) {
    alarm(30);
    static std::atomic<bool> leaves{false};
    static std::atomic<bool> ended{false};
    static std::atomic<bool> over{false};
    static std::atomic<bool> never{false};
    static std::atomic<pid_t> joiner{0};
    static thread_t thread = 0;
    static pthread_key_t key{};
    const auto linger = [](void*) {
      ended = true;
      wait_for(&over);
    };
    const auto leave = [](void*) {
      pthread_setspecific(key, &key);
      return wait_for(&leaves);
    };
    const auto join = [](void* one) -> void* {
      joiner = gettid();
      thread_t departed = 0;
      const int error = thr_join(one != nullptr ? thread : 0, &departed, nullptr);
      return number(error == 0 && departed == thread);
    };
    const auto join_and_sleep = [&](void* one) {
      joiner = 0;
      pthread_t joins{};
      if (pthread_create(&joins, nullptr, join, one) != 0) _exit(1);
      while (joiner == 0 || !farcall::test::is_asleep(joiner)) thr_yield();
      return joins;
    };
    thread_t other = 0;
    if (pthread_key_create(&key, linger) != 0 ||
        thr_create(nullptr, 0, leave, nullptr, 0, &thread) != 0 ||
        thr_create(nullptr, 0, &wait_for, &never, 0, &other) != 0)
      _exit(2);
    const pthread_t cancelled = join_and_sleep(&thread);
    leaves = true;
    while (!ended) thr_yield();
    const pthread_t joins = join_and_sleep(nullptr);
    pthread_cancel(cancelled);
    pthread_join(cancelled, nullptr);
    over = true;
    void* right = nullptr;
    _exit(pthread_join(joins, &right) == 0 && right != nullptr ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// Somebody else may wait for it then.
TEST(Threads, AJoinThatIsCancelledTakesNothing) {
  FARCALL_SKIP_UNDER_TSAN("has a pthread_join() that must not be cancelled");
  std::atomic<bool> over{false};
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &wait_for, &over, 0, &thread), 0);
  pthread_t joins{};
  const auto join = [](void* other) -> void* {
    (void)thr_join(*static_cast<thread_t*>(other), nullptr, nullptr);
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&joins, nullptr, join, &thread), 0);
  ASSERT_EQ(pthread_cancel(joins), 0);
  void* status = nullptr;
  ASSERT_EQ(pthread_join(joins, &status), 0);
  EXPECT_EQ(status, PTHREAD_CANCELED);
  over = true;
  EXPECT_EQ(thr_join(thread, nullptr, nullptr), 0);
}

TEST(Threads, AThreadCannotJoinItself) {
  EXPECT_EQ(thr_join(thr_self(), nullptr, nullptr), EDEADLK);
}

TEST(Threads, ASuspendedThreadStartsWhenItIsContinued) {
  static std::atomic<bool> ran;
  ran = false;
  const auto run = [](void*) -> void* {
    ran = true;
    return nullptr;
  };
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, run, nullptr, THR_SUSPENDED, &thread), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(ran);
  EXPECT_EQ(thr_suspend(thread), 0);
  EXPECT_EQ(thr_continue(thread), 0);
  ASSERT_EQ(thr_join(thread, nullptr, nullptr), 0);
  EXPECT_TRUE(ran);
}

TEST(Threads, ARunningThreadCannotBeSuspended) {
  std::atomic<bool> go{false};
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &wait_for, &go, 0, &thread), 0);
  EXPECT_EQ(thr_suspend(thread), ENOTSUP);
  go = true;
  ASSERT_EQ(thr_join(thread, nullptr, nullptr), 0);
}

TEST(Threads, AThreadThatHasEndedCannotBeContinued) {
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &give_back, nullptr, 0, &thread), 0);
  while (thr_suspend(thread) == ENOTSUP) thr_yield();  // as long as it runs
  EXPECT_EQ(thr_suspend(thread), ESRCH);
  EXPECT_EQ(thr_continue(thread), ESRCH);
  EXPECT_EQ(thr_join(thread, nullptr, nullptr), 0);
}

TEST(Threads, WrongArgumentsAreRefused) {
  EXPECT_EQ(thr_create(nullptr, 0, &give_back, nullptr, 0x4000, nullptr), EINVAL);
  EXPECT_EQ(thr_create(nullptr, 16, &give_back, nullptr, 0, nullptr), EINVAL);
  EXPECT_EQ(thr_continue(thr_self()), ESRCH);
}

// As the page of Sun's on door_server_create() makes its threads.
TEST(Threads, SmallStacksOfSolarisAreLargeEnough) {
  const auto use_it = [](void*) -> void* {
    volatile char all[8192];
    for (std::size_t i = 0; i < sizeof all; i += 64) all[i] = 1;
    return number(all[0]);
  };
  for (const std::size_t size : {std::size_t{4096}, std::size_t{8192}}) {
    thread_t thread = 0;
    ASSERT_EQ(thr_create(nullptr, size, use_it, nullptr, THR_BOUND, &thread), 0) << size;
    void* status = nullptr;
    ASSERT_EQ(thr_join(thread, nullptr, &status), 0);
    EXPECT_EQ(status, number(1));
  }
}

TEST(Threads, AThreadRunsOnTheStackThatItIsGiven) {
  const std::size_t size = thr_min_stack() + (std::size_t{2} << 20);
  void* const memory =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const auto where = [](void*) -> void* {
    stack_t stack{};
    return thr_stksegment(&stack) == 0 ? stack.ss_sp : nullptr;
  };
  thread_t thread = 0;
  ASSERT_EQ(thr_create(memory, size, where, nullptr, 0, &thread), 0);
  void* top = nullptr;
  ASSERT_EQ(thr_join(thread, nullptr, &top), 0);
  EXPECT_EQ(top, static_cast<char*>(memory) + size);
  munmap(memory, size);
}

TEST(Threads, OnlyTheFirstThreadIsMain) {
  thread_t thread = 0;
  const auto is_main = [](void*) -> void* { return number(thr_main()); };
  ASSERT_EQ(thr_create(nullptr, 0, is_main, nullptr, 0, &thread), 0);
  void* status = number(-1);
  ASSERT_EQ(thr_join(thread, nullptr, &status), 0);
  EXPECT_EQ(status, number(0));
  EXPECT_EQ(thr_main(), 1);
}

TEST(Threads, SignalsReachOneThread) {
  static std::atomic<pthread_t> caught;
  caught = 0;
  struct sigaction action {};
  action.sa_handler = [](int) { caught = pthread_self(); };
  ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
  std::atomic<bool> go{false};
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, &wait_for, &go, 0, &thread), 0);
  ASSERT_EQ(thr_kill(thread, SIGUSR1), 0);
  while (caught == 0) thr_yield();
  EXPECT_EQ(caught, thread);
  go = true;
  ASSERT_EQ(thr_join(thread, nullptr, nullptr), 0);

  sigset_t block;
  sigset_t before;
  sigset_t now;
  sigemptyset(&block);
  sigaddset(&block, SIGUSR1);
  ASSERT_EQ(thr_sigsetmask(SIG_BLOCK, &block, &before), 0);
  ASSERT_EQ(thr_sigsetmask(SIG_SETMASK, &before, &now), 0);
  EXPECT_EQ(sigismember(&now, SIGUSR1), 1);
}

TEST(Threads, AKeyIsMadeAtEachCallAndDestroysTheValueOfAThreadThatEnds) {
  static thread_key_t key = 0;
  static std::atomic<void*> destroyed = nullptr;
  ASSERT_EQ(thr_keycreate(&key, [](void* value) { destroyed = value; }), 0);
  thread_key_t other = key;
  ASSERT_EQ(thr_keycreate(&other, nullptr), 0);
  EXPECT_NE(other, key);
  const auto hold = [](void* value) -> void* { return number(thr_setspecific(key, value)); };
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, hold, number(7), 0, &thread), 0);
  void* result = number(-1);
  ASSERT_EQ(thr_join(thread, nullptr, &result), 0);
  EXPECT_EQ(result, number(0));
  EXPECT_EQ(destroyed, number(7));
}

TEST(Threads, KeysHoldAValueForEachThread) {
  static thread_key_t key = THR_ONCE_KEY;
  ASSERT_EQ(thr_keycreate_once(&key, nullptr), 0);
  const thread_key_t made = key;
  ASSERT_EQ(thr_keycreate_once(&key, nullptr), 0);
  EXPECT_EQ(key, made);
  ASSERT_EQ(thr_setspecific(key, number(5)), 0);
  const auto look = [](void*) -> void* {
    void* value = number(-1);
    thr_getspecific(key, &value);
    return value;
  };
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, look, nullptr, 0, &thread), 0);
  void* other = number(-1);
  ASSERT_EQ(thr_join(thread, nullptr, &other), 0);
  EXPECT_EQ(other, nullptr);
  EXPECT_EQ(look(nullptr), number(5));
}

TEST(Threads, ConcurrencyIsRemembered) {
  ASSERT_EQ(thr_setconcurrency(3), 0);
  EXPECT_EQ(thr_getconcurrency(), 3);
  int priority = -1;
  ASSERT_EQ(thr_getprio(thr_self(), &priority), 0);
  EXPECT_EQ(thr_setprio(thr_self(), priority), 0);
}

TEST(Clocks, TheHighResolutionTimeAdvancesInNanoseconds) {
  const hrtime_t before = gethrtime();
  const hrtime_t used = gethrvtime();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(gethrtime() - before, 20'000'000);
  EXPECT_LT(gethrvtime() - used, 20'000'000);
}

TEST(Clocks, TheTimeThatAThreadHasRunIsItsOwn) {
  const hrtime_t before = gethrvtime();
  std::thread([] {
    const hrtime_t begun = gethrvtime();
    while (gethrvtime() - begun < 50'000'000) continue;
  }).join();
  EXPECT_LT(gethrvtime() - before, 50'000'000);
}

TEST(Threads, AThreadBlocksTheSignalsThatItsMakerBlocks) {
  sigset_t before;
  sigset_t some;
  ASSERT_EQ(::sigemptyset(&some), 0);
  ASSERT_EQ(::sigaddset(&some, SIGUSR2), 0);
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &some, &before), 0);
  sigset_t seen;
  const auto look = [](void* into) -> void* {
    ::pthread_sigmask(SIG_SETMASK, nullptr, static_cast<sigset_t*>(into));
    return nullptr;
  };
  thread_t thread = 0;
  ASSERT_EQ(thr_create(nullptr, 0, look, &seen, 0, &thread), 0);
  ASSERT_EQ(thr_join(thread, nullptr, nullptr), 0);
  for (const int number : {SIGUSR1, SIGUSR2, SIGTERM, SIGALRM})
    EXPECT_EQ(::sigismember(&seen, number), number == SIGUSR2 ? 1 : 0) << number;
  ASSERT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
}

}  // namespace
