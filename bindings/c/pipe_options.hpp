// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "c/pipe.hpp"
#include "farcall/farcall.h"
#include "farcall/wait.hpp"

namespace farcall::c {

struct PipeOptions {
  std::size_t capacity;  // of who makes a pipe
  std::size_t most;      // that the peer may have made it
  WaitMode wait;
  RingKind kind;

  // Throws SystemError: EINVAL.
  static PipeOptions read(const farcall_pipe_options* given);

  // An end of the kind that is wanted; throws as its constructor does.
  [[nodiscard]] std::unique_ptr<Pipe> make(PipeParts& parts, std::size_t largest) const {
    if (kind == RingKind::bytes) return std::make_unique<BytePipe>(parts, wait, largest);
    return std::make_unique<MessagePipe>(parts, wait, largest);
  }
};

}  // namespace farcall::c
