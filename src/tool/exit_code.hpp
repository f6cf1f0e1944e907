// SPDX-License-Identifier: Apache-2.0
//
// How commands end.
#pragma once

#include <sys/wait.h>

namespace farcall::tool {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,  // something could not be done
  kUsage = 2,    // the command line asks for what does not exist
};

inline constexpr int kNotExecuted = 127;  // as a shell says it

// That of a program which has ended, as a shell says it; `status` is that of waitpid(2).
inline int exit_code_of(int status) noexcept {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace farcall::tool
