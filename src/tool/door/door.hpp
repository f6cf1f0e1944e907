// SPDX-License-Identifier: Apache-2.0
//
// What `farcall door` does. Failures are exceptions, exit codes those of exit_code.hpp.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace farcall::tool::door {

// Lines about the door at a path, or about all door descriptors of a process.
std::string describe(const std::string& path_or_pid);

struct Call {
  std::string path;
  std::optional<std::string> data;  // else what standard input holds
  double wait_s = 0;                // for the door to appear
};
int call(const Call& call);

struct Serve {
  std::string path;
  std::vector<std::string> command;
};
int serve(const Serve& serve);

}  // namespace farcall::tool::door
