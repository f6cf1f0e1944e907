// SPDX-License-Identifier: Apache-2.0
//
// Captures what processes send each other through memory, into a file that Wireshark opens.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace farcall::capture {

struct Options {
  std::vector<pid_t> pids;  // none: all of the caller's user
  bool all_users = false;   // without `pids`: of others as well, as far as the caller may see them
  std::string file;         // "-": standard output
  std::string filter;       // filter.hpp
  std::uint64_t packets = 0;  // ends after so many; 0: does not
  // For the shell; what it starts is captured from the beginning, alone unless there are `pids`,
  // and the capture ends with it. Empty: nothing is started.
  std::string command;
  void (*before_command)() noexcept = nullptr;  // runs in the command's process, if not null
};

struct Summary {
  std::uint64_t packets = 0;
  std::uint64_t bytes = 0;      // of messages
  std::size_t processes = 0;    // that told of any
  std::uint64_t lost = 0;       // messages
  std::uint64_t missing = 0;    // bytes of TCP, of which the packets before and behind are there
  std::size_t ended = 0;        // processes that ended meanwhile
  bool stopped_itself = false;  // for so long that it was not waited for
  int command_status = 0;       // as waitpid(2) tells it
  bool left_command = false;    // `stop` was set before it had ended: it has no status, and goes on
};

// Until `stop` is set, the packets are there, or all processes of `pids` have ended. Throws
// std::invalid_argument for a filter that is none, SystemError for what cannot be seen or written.
Summary capture(const Options& options, const std::atomic<bool>& stop);

}  // namespace farcall::capture
