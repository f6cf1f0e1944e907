// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "farcall/memory.hpp"

namespace farcall {

// The same file, where none of the standard streams is: programs that have closed theirs write to
// them all the same. The descriptor itself where there is none left.
inline UniqueFd beyond_standard_streams(UniqueFd fd) noexcept {
  constexpr int kFirst = STDERR_FILENO + 1;
  if (!fd || fd.get() >= kFirst) [[likely]]
    return fd;
  UniqueFd higher(::fcntl(fd.get(), F_DUPFD_CLOEXEC, kFirst));
  return higher ? std::move(higher) : std::move(fd);
}

}  // namespace farcall
