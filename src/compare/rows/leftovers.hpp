// SPDX-License-Identifier: Apache-2.0
//
// For peers whose files have names and stay when their processes are killed.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {

// Calls `remove` when all processes that have this have ended or destroyed it, in whatever way: in
// a process of its own, which is waited for by whoever made this. For a process with one thread.
class Leftovers {
 public:
  explicit Leftovers(const std::function<void()>& remove) : owner_(::getpid()) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
    const UniqueFd alive(ends[0]);
    mine_ = UniqueFd(ends[1]);
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ == 0) watch(alive.get(), remove);
  }
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;
  ~Leftovers() {
    mine_.reset();
    if (::getpid() != owner_) return;
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

 private:
  // Outlives the tool, if that is how it ends, and keeps nothing of it: other ends of sockets, by
  // which those that measure tell that they have gone.
  [[noreturn]] static void watch(int alive, const std::function<void()>& remove) {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::signal(signal, SIG_IGN);
    ::dup2(alive, STDIN_FILENO);
    ::close_range(STDERR_FILENO + 1, ~0U, 0);
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
    }
    remove();
    ::_exit(0);
  }

  pid_t owner_;
  pid_t pid_ = -1;
  UniqueFd mine_;
};

}  // namespace farcall::compare
