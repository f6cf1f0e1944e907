// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {

// The end that is read, and the one that is written. Throws SystemError.
inline std::pair<UniqueFd, UniqueFd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace farcall::compare
