// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace farcall::watch {

// Of /proc/PID/status and /proc/PID/stat, which everybody may read.
struct Status {
  std::string command;
  uid_t user = 0;
  gid_t group = 0;
  bool one_identity = false;  // real, effective and saved ids are the same
  pid_t parent = 0;
  pid_t own_pid = 0;  // as it numbers itself
  bool same_pids = false;
  std::uint64_t started = 0;
};

// False: it has gone, or ended without being waited for.
bool read_status(pid_t pid, Status& into);

}  // namespace farcall::watch
