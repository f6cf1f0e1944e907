// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "farcall/error.hpp"

namespace farcall::tool {

// All of it. Throws SystemError.
inline std::string standard_input() {
  std::string all;
  std::array<char, 65536> piece;
  for (;;) {
    const ssize_t size = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw_errno("read standard input");
    if (size == 0) return all;
    all.append(piece.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace farcall::tool
