// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace farcall::test {

// The byte at that place of a direction (0: from the client) of a connection.
inline char said(unsigned connection, unsigned direction, std::uint64_t at) {
  const std::uint64_t mixed =
      (at + 1) * 0x9e3779b97f4a7c15 + connection * 0x100000001b3 + direction;
  return static_cast<char>(mixed >> 56);
}

}  // namespace farcall::test
