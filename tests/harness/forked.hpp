// SPDX-License-Identifier: Apache-2.0
//
// Children of tests that have no watchdog.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <type_traits>
#include <utility>

namespace farcall::test {

// A child that ends, by a signal if need be, when this does, and after a minute.
class Forked {
 public:
  // It runs `work`, and ends with what that returns.
  template <class Work>
  explicit Forked(Work work) : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::alarm(60);
    if constexpr (!std::is_void_v<decltype(work())>) ::_exit(work());
    work();
    ::_exit(0);
  }
  ~Forked() {
    if (pid_ > 0) (void)kill(SIGKILL), (void)wait();
  }
  Forked(const Forked&) = delete;
  Forked& operator=(const Forked&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  int kill(int signal) const { return ::kill(pid_, signal); }
  // Its status, as waitpid() gives it; -1 where it cannot be waited for.
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

}  // namespace farcall::test
