// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farcall/farcall.h"
#include "farcall/wait.hpp"

namespace farcall::c {

struct PipeOptions {
  std::size_t capacity;  // of who makes a pipe
  std::size_t most;      // that the peer may have made it
  WaitMode wait;

  // Throws SystemError: EINVAL.
  static PipeOptions read(const farcall_pipe_options* given);
};

}  // namespace farcall::c
