// SPDX-License-Identifier: Apache-2.0
//
// Children that cannot outlive a test or hang it. Whatever is expected in a child is expected of
// the test.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "farcall/wait.hpp"
#include "harness/eventually.hpp"
#include "harness/shared.hpp"
#include "harness/surroundings.hpp"

namespace farcall::test {

// Ends the process, as a failure, unless it is called again or the test ends by then.
void give_up_after(std::chrono::seconds time);
// In a child: somewhat sooner than that.
void give_up_before_parent();

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

}  // namespace farcall::test
