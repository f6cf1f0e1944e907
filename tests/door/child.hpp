// SPDX-License-Identifier: Apache-2.0
//
// Processes for tests: children that cannot outlive a test or hang it, and what they share with
// their parent. Whatever is expected in a child is expected of the test.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "farcall/wait.hpp"

namespace farcall::door::test {

using namespace std::chrono_literals;

// Whether doors that tests make are the kernel's. Most tests do not care.
inline bool over_module() {
  const char* engine = std::getenv("FARCALL_ENGINE");
  return engine != nullptr && std::string_view(engine) == "kernel";
}

// How much longer things take than in an optimised program on an idle machine.
#if defined(__SANITIZE_THREAD__)
inline constexpr int kSlow = 10;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlow = 4;
#else
inline constexpr int kSlow = 1;
#endif

// Tests that ThreadSanitizer cannot follow end before they begin.
#if defined(__SANITIZE_THREAD__)
#define FARCALL_SKIP_UNDER_TSAN(reason) GTEST_SKIP() << "ThreadSanitizer " reason
#else
#define FARCALL_SKIP_UNDER_TSAN(reason) static_assert(true)
#endif
#if defined(__SANITIZE_ADDRESS__)
#define FARCALL_SKIP_UNDER_ASAN(reason) GTEST_SKIP() << "AddressSanitizer " reason
#else
#define FARCALL_SKIP_UNDER_ASAN(reason) static_assert(true)
#endif
#define FARCALL_TSAN_CHILD "takes a thread of a forked child for one of its parent"
#define FARCALL_TSAN_ENDED "sees no locks in a thread that has been cancelled or has ended"
#define FARCALL_TSAN_ELSEWHERE "sees no order that another process brings about"

// Sanitizers put functions of their own in front of the library's that install signal handlers: one
// that comes while a call is awake is lost then.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kCountsSignals = false;
#define FARCALL_SKIP_WITHOUT_WRAPPERS() \
  GTEST_SKIP() << "a sanitizer's sigaction() is in front of the library's"
#else
inline constexpr bool kCountsSignals = true;
#define FARCALL_SKIP_WITHOUT_WRAPPERS() static_assert(true)
#endif

#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

// No wait for something that must happen takes longer.
inline constexpr std::chrono::milliseconds kPatience = 10s * (kSlow > 1 ? 2 : 1);
// How long to watch for something that must not happen.
inline constexpr std::chrono::milliseconds kGlance = 60ms;

// Ends the process, as a failure, unless it is called again or the test ends by then.
void give_up_after(std::chrono::seconds time);
// In a child: somewhat sooner than that.
void give_up_before_parent();

inline std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

// For what nobody tells of: looks again and again.
template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds time = kPatience) {
  const std::int64_t end = now_ns() + time.count() * 1'000'000;
  while (!condition()) {
    if (now_ns() > end) return condition();
    std::this_thread::sleep_for(500us);
  }
  return true;
}

// Stops a child of this process, and returns when it runs no more: a signal may take a while to
// reach all threads.
inline bool stop_process(pid_t process) {
  siginfo_t info{};
  return ::kill(process, SIGSTOP) == 0 && eventually([&] {
           return ::waitid(P_PID, static_cast<id_t>(process), &info,
                           WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
                  info.si_pid == process;
         });
}

// For what threads may still use when a test is over.
template <class T>
T& lasting() {
  static auto& all = *new std::deque<T>;
  return all.emplace_back();
}

// Memory that this process shares with the children it makes.
template <class T>
class Shared {
 public:
  Shared() {
    void* memory =
        ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    value_ = new (memory) T;
  }
  // Only the mapping goes: children may still use the value.
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }
  T* get() const { return value_; }

 private:
  T* value_;
};

// Something that happens, once or more often, in this process or, where shared, in another.
class Event {
 public:
  Event() { ::sem_init(&happened_, 1, 0); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void happens() { ::sem_post(&happened_); }
  // Waits for it, and takes one.
  [[nodiscard]] bool wait(std::chrono::milliseconds time = kPatience) {
    timespec end{};
    ::clock_gettime(CLOCK_REALTIME, &end);
    const auto ns = end.tv_nsec + time.count() % 1000 * 1'000'000;
    end.tv_sec += time.count() / 1000 + ns / 1'000'000'000;
    end.tv_nsec = ns % 1'000'000'000;
    int result;
    while ((result = ::sem_timedwait(&happened_, &end)) != 0 && errno == EINTR) {
    }
    return result == 0;
  }
  // For server procedures that are to last: as wait(), and a cancellation point.
  void await() { (void)wait(60s); }

 private:
  sem_t happened_;
};

// A sanitizer does not hold its allocator's locks over a fork: a child of a process in which
// another thread, one that has just begun, say, was allocating waits for them for ever. So fork()
// where all others sleep, if they come to that.
pid_t fork_while_others_rest();
// Whether every thread of this process but the caller sleeps, or has ended. Where there are no
// descriptors to look at them with, yes.
bool others_sleep();
// Waits until they have done so for some time: each that has been made is where it waits for work.
inline bool others_come_to_rest() {
  int asleep = 0;
  return eventually([&] { return (asleep = others_sleep() ? asleep + 1 : 0) >= 6; });
}

class Child {
 public:
  // Runs `body` in a child.
  template <class Body>
  explicit Child(Body body) {
    const pid_t parent = ::getpid();
    pid_ = fork_while_others_rest();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it died before it could be said
    give_up_before_parent();
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Waits until it has ended, and returns its status as waitpid() does; -1 if it does not end.
  int join(std::chrono::milliseconds time = 2 * kPatience) {
    if (pid_ < 0) return status_;
    const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{.fd = handle, .events = POLLIN, .revents = 0};
    int count;
    do {
      count = ::poll(&ended, 1, static_cast<int>(time.count()));
    } while (count < 0 && errno == EINTR);
    ::close(handle);
    if (count != 1) {
      kill();
      return -1;
    }
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    farcall::order_for_sanitizer();
    pid_ = -1;
    return status_;
  }
  void kill() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int status_ = -1;
};

// Runs `body` in a child and expects it to end well.
template <class Body>
void in_child(Body body) {
  Child child(body);
  ASSERT_GE(child.pid(), 0);
  EXPECT_EQ(child.join(), 0) << "what the child expected, or how it ended";
}

// Runs `body` here, where the server is, and in a child, which is another process.
template <class Body>
void in_server_and_client(Body body) {
  {
    SCOPED_TRACE("in the server's process");
    body();
  }
  SCOPED_TRACE("in another process");
  in_child(body);
}

inline bool is_root() { return ::geteuid() == 0; }

// By SO_PEERPIDFD, which is younger than the C library's headers.
inline bool kernel_sends_pidfds() {
  constexpr int kPeerPidfd = 77;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  int process = -1;
  socklen_t size = sizeof process;
  const bool sends = ::getsockopt(ends[0], SOL_SOCKET, kPeerPidfd, &process, &size) == 0;
  if (sends) ::close(process);
  ::close(ends[0]);
  ::close(ends[1]);
  return sends;
}
// A user without privileges whom no other test of the moment is: the kernel counts what a user has
// in flight or locked over all processes, and some tests use that up.
inline const uid_t kNobody = 60'000 + 2 * static_cast<uid_t>(::getpid() % 2'500);

// Becomes a user without privileges, for good.
inline bool become(uid_t user) {
  return ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0;
}

}  // namespace farcall::door::test
