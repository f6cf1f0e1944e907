// SPDX-License-Identifier: Apache-2.0
//
// A library that is linked with the C library alone, and so calls that one's functions by version.
#include <signal.h>
#include <unistd.h>

extern "C" int become_by_another_library(uid_t user) {
  return ::setresgid(user, user, user) == 0 ? ::setresuid(user, user, user) : -1;
}

extern "C" int handle_by_another_library(int signal, const struct sigaction* action,
                                         struct sigaction* before) {
  return ::sigaction(signal, action, before);
}
