// SPDX-License-Identifier: Apache-2.0
//
// Runs the farcall command as users do.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "harness/eventually.hpp"
#include "harness/scratch.hpp"

namespace farcall::test {

struct Finished {
  int code;  // of the exit, or 128 + the signal
  std::string out;
  std::string err;
};

// The command with these arguments, in a process group of its own.
class Command {
 public:
  // `prepare`, if there is one, runs in the new process before it becomes the command.
  explicit Command(const std::vector<std::string>& arguments, void (*prepare)() = nullptr);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command();

  [[nodiscard]] pid_t pid() const { return pid_; }
  void kill(int signal) const;
  Finished wait();
  // Whether any process of the group is left, after a moment for the kernel to end them.
  [[nodiscard]] bool left_processes() const;
  // Whether it gets children within a few seconds.
  [[nodiscard]] bool has_children() const;

 private:
  pid_t pid_ = -1;
  bool waited_ = false;
  int out_ = -1;
  int err_ = -1;
};

inline Finished run_farcall(const std::vector<std::string>& arguments) {
  return Command(arguments).wait();
}

// The same with SIGCHLD ignored, as careless callers leave it.
Finished run_ignoring_children(const std::vector<std::string>& arguments);

// What a command of the shell prints.
std::string output_of(const std::string& shell_command);

}  // namespace farcall::test
