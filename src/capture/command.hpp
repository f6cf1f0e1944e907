// SPDX-License-Identifier: Apache-2.0
//
// A command of the shell that is captured from the beginning.
#pragma once

#include <sys/types.h>

#include <string>

namespace farcall::capture {

class Command {
 public:
  // Starts it. It goes on when this goes. `before`, if there is one, runs in the child before it
  // becomes the shell.
  Command(const std::string& command, void (*before)() noexcept);

  bool has_ended();
  // Whether it has started that process, or one that has started it: by the environment.
  [[nodiscard]] bool has_started(pid_t pid) const;
  [[nodiscard]] int status() const noexcept { return status_; }

 private:
  std::string mark_;  // a variable of the environment that no other command has
  pid_t pid_;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace farcall::capture
