// SPDX-License-Identifier: Apache-2.0
//
// The C library's own functions, where this library puts its own in front of them.
//
// No static here or elsewhere in this library has a guard that a thread could hold while another
// one forks: the child would wait for it for ever.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "interpose/next.hpp"

namespace farcall::door::real {

using interpose::next;
using interpose::Symbol;

inline int close(int fd) { return next<"close", int(int)>()(fd); }
inline int openat(int directory, const char* path, int flags, mode_t mode) {
  return next<"openat", int(int, const char*, int, ...)>()(directory, path, flags, mode);
}
inline int fstat(int fd, struct stat* status) {
  return next<"fstat", int(int, struct stat*)>()(fd, status);
}
inline int fstatat(int directory, const char* path, struct stat* status, int flags) {
  return next<"fstatat", int(int, const char*, struct stat*, int)>()(directory, path, status,
                                                                     flags);
}

// All that is used often, when the library is loaded.
[[maybe_unused]] static const bool kLookedUp = [] {
  (void)next<"close", int(int)>();
  (void)next<"openat", int(int, const char*, int, ...)>();
  (void)next<"fstat", int(int, struct stat*)>();
  (void)next<"fstatat", int(int, const char*, struct stat*, int)>();
  (void)next<"dup", int(int)>();
  (void)next<"dup2", int(int, int)>();
  (void)next<"dup3", int(int, int, int)>();
  (void)next<"fcntl", int(int, int, ...)>();
  return true;
}();

}  // namespace farcall::door::real
