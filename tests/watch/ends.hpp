// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "harness/forked.hpp"
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

using Child = Forked;

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
