// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "watch/process.hpp"

namespace farcall::test {

// What a process shows of itself now.
inline std::vector<watch::End> ends_of(pid_t pid) {
  watch::Process process;
  const watch::Seen seen = watch::look(pid, process);
  EXPECT_TRUE(seen == watch::Seen::yes || seen == watch::Seen::no_tables) << static_cast<int>(seen);
  return process.ends;
}
inline std::vector<watch::End> ends_of(pid_t pid, observe::Kind kind, observe::Role role) {
  std::vector<watch::End> all = ends_of(pid);
  std::erase_if(all, [&](const watch::End& end) { return end.kind != kind || end.role != role; });
  return all;
}
inline std::vector<watch::End> own_ends(observe::Kind kind, observe::Role role) {
  return ends_of(::getpid(), kind, role);
}

// A child that runs `work` and then ends with what it returns. Killed, if it still is there, and
// waited for.
class Child {
 public:
  explicit Child(const std::function<int()>& work) : pid_(::fork()) {
    if (pid_ == 0) ::_exit(work());
  }
  ~Child() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      (void)wait();
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  [[nodiscard]] pid_t pid() const { return pid_; }
  int wait() {
    int status = -1;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }

 private:
  pid_t pid_;
};

// A pipe of one byte: somebody has come so far.
class Gate {
 public:
  Gate() { EXPECT_EQ(::pipe(fds_), 0); }
  ~Gate() {
    ::close(fds_[0]);
    ::close(fds_[1]);
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() const { EXPECT_EQ(::write(fds_[1], "x", 1), 1); }
  void wait() const {
    char byte = 0;
    EXPECT_EQ(::read(fds_[0], &byte, 1), 1);
  }

 private:
  int fds_[2] = {-1, -1};
};

}  // namespace farcall::test
