// SPDX-License-Identifier: Apache-2.0
//
// The C library's own functions, for a library that may put its own in front of them. Where it does
// see interposed.cpp, where not plain.cpp.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace farcall::door::real {

int close(int fd);
int openat(int directory, const char* path, int flags, mode_t mode);
int fstat(int fd, struct stat* status) noexcept;
int fstatat(int directory, const char* path, struct stat* status, int flags) noexcept;
int statx(int directory, const char* path, int flags, unsigned mask, struct statx* status) noexcept;

namespace detail {
extern const bool sees_all;
}
// Whether the functions that the program calls by these names are ours, so that descriptors are not
// closed without our knowledge: system calls apart.
inline bool sees_all() noexcept { return detail::sees_all; }

}  // namespace farcall::door::real
