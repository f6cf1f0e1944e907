// SPDX-License-Identifier: Apache-2.0
//
// The C library's functions for the library that puts none of its own in front of them.
#include "door/real.hpp"

namespace farcall::door::real {

int close(int fd) { return ::close(fd); }
int openat(int directory, const char* path, int flags, mode_t mode) {
  return ::openat(directory, path, flags, mode);
}
int fstat(int fd, struct stat* status) noexcept { return ::fstat(fd, status); }
int fstatat(int directory, const char* path, struct stat* status, int flags) noexcept {
  return ::fstatat(directory, path, status, flags);
}
int statx(int directory, const char* path, int flags, unsigned mask,
          struct statx* status) noexcept {
  return ::statx(directory, path, flags, mask, status);
}

// The program's functions are not ours, and tell of nothing.
const bool detail::sees_all = false;

}  // namespace farcall::door::real
