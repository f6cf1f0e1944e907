// SPDX-License-Identifier: Apache-2.0
//
// Hooks: the life of a socket.
#include <sys/socket.h>

#include "preload/real.hpp"

using namespace farcall::preload;

extern "C" {

int close(int fd) { return static_cast<int>(with_errno(kernel(SYS_close, fd))); }

}  // extern "C"
