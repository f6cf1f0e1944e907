// SPDX-License-Identifier: Apache-2.0
//
// fork(2) in signal handlers, which programs without threads may count on. Where there are threads,
// as there are in a process that serves, the C library holds a lock of its own at the beginning and
// the end of a fork: a handler that comes just then, and forks, would wait for its own thread.
#include <sys/types.h>

#include "interpose/next.hpp"
#include "process/process.hpp"

namespace {

[[gnu::tls_model("initial-exec")]] constinit thread_local bool forks = false;

// dlsym() is not for handlers.
[[maybe_unused]] const bool kLookedUp = [] {
  (void)farcall::interpose::next<"fork", pid_t()>();
  (void)farcall::interpose::next<"_Fork", pid_t()>();
  return true;
}();

}  // namespace

extern "C" {

pid_t fork() noexcept {
  using farcall::interpose::next;
  pid_t (*const bare)() = next<"_Fork", pid_t()>();
  if (forks && bare != nullptr) return farcall::process::fork_in_fork(bare);
  forks = true;
  const pid_t child = next<"fork", pid_t()>()();
  forks = false;
  return child;
}

FARCALL_WITHOUT_VERSION(fork);

}  // extern "C"
