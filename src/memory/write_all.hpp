// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string_view>

#include "farcall/error.hpp"

namespace farcall {

// Throws SystemError, which says `what`.
inline void write_all(int fd, std::span<const std::byte> bytes, std::string_view what) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno(what);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace farcall
