// SPDX-License-Identifier: Apache-2.0
//
// The C library's own functions, where this library puts its own in front of them.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace farcall::door::real {

// Looks `name` up behind this library at the first use.
template <class Function>
Function* next(const char* name) noexcept {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

inline int close(int fd) {
  static auto* const function = next<int(int)>("close");
  return function(fd);
}
inline int openat(int directory, const char* path, int flags, mode_t mode) {
  static auto* const function = next<int(int, const char*, int, ...)>("openat");
  return function(directory, path, flags, mode);
}
inline int fstat(int fd, struct stat* status) {
  static auto* const function = next<int(int, struct stat*)>("fstat");
  return function(fd, status);
}
inline int fstatat(int directory, const char* path, struct stat* status, int flags) {
  static auto* const function = next<int(int, const char*, struct stat*, int)>("fstatat");
  return function(directory, path, status, flags);
}

}  // namespace farcall::door::real
