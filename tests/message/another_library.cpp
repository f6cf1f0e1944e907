// SPDX-License-Identifier: Apache-2.0
//
// A library that is linked with the C library alone, and so calls that one's functions by version.
#include <unistd.h>

extern "C" int become_by_another_library(uid_t user) {
  return ::setresgid(user, user, user) == 0 ? ::setresuid(user, user, user) : -1;
}
