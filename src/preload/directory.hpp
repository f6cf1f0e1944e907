// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "preload/real.hpp"

namespace farcall::preload {

// Calls found(directory, name) for each entry of the directory until it is true.
template <class Found>
bool find_entry(const char* path, Found found) noexcept {
  const long directory = kernel(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
  if (directory < 0) return false;
  alignas(8) char entries[4096];
  bool done = false;
  long size = 0;
  while (!done && (size = kernel(SYS_getdents64, directory, entries, sizeof entries)) > 0) {
    for (long at = 0; at < size && !done;) {
      std::uint16_t length = 0;
      std::memcpy(&length, entries + at + offsetof(dirent64, d_reclen), sizeof length);
      const char* const name = entries + at + offsetof(dirent64, d_name);
      if (*name != '.') done = found(static_cast<int>(directory), name);
      at += length;
    }
  }
  kernel(SYS_close, directory);
  return done;
}

}  // namespace farcall::preload
