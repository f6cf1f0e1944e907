// SPDX-License-Identifier: Apache-2.0
//
// fork(2) in signal handlers, which programs without threads may count on. The C library holds a
// lock of its own over it where there are threads, as there are in a process that serves: a handler
// that came in the middle, and forked, would wait for its own thread.
#include <sys/types.h>

#include "interpose/next.hpp"
#include "process/process.hpp"

namespace {

// dlsym() is not for handlers.
[[maybe_unused]] const auto kLookedUp = farcall::interpose::next<"fork", pid_t()>();

}  // namespace

extern "C" {

pid_t fork() noexcept {
  const farcall::process::QuietFork quiet;
  return farcall::interpose::next<"fork", pid_t()>()();
}

FARCALL_WITHOUT_VERSION(fork);

}  // extern "C"
