// SPDX-License-Identifier: Apache-2.0
//
// A command of the shell that is captured from the beginning.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "watch/process.hpp"

namespace farcall::capture {

class Command {
 public:
  // Starts it. It goes on when this goes. `before`, if there is one, runs in the child before it
  // becomes the shell.
  Command(const std::string& command, void (*before)() noexcept);

  bool has_ended();
  // Whether it has started that process, or one that has started it: the process says so, whatever
  // it has made of its environment since, or its parents are known.
  [[nodiscard]] bool has_started(const watch::Process& process) const;
  [[nodiscard]] int status() const noexcept { return status_; }

 private:
  std::uint64_t capturer_;  // by which the processes that it starts know who captures
  pid_t pid_;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace farcall::capture
