// SPDX-License-Identifier: Apache-2.0
//
// Who runs the tests, over which engine, and on which kernel.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace farcall::test {

// Whether doors that tests make are the kernel's. Most tests do not care.
inline bool over_module() {
  const char* engine = std::getenv("FARCALL_ENGINE");
  return engine != nullptr && std::string_view(engine) == "kernel";
}

inline bool is_root() { return ::geteuid() == 0; }
// A user without privileges whom no other test of the moment is: the kernel counts what a user has
// in flight or locked over all processes, and some tests use that up.
inline const uid_t kNobody = 60'000 + 2 * static_cast<uid_t>(::getpid() % 2'500);

// Becomes a user without privileges, for good.
inline bool become(uid_t user) {
  return ::setresgid(user, user, user) == 0 && ::setresuid(user, user, user) == 0;
}

// By SO_PEERPIDFD, which is younger than the C library's headers.
inline bool kernel_sends_pidfds() {
  constexpr int kPeerPidfd = 77;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  int process = -1;
  socklen_t size = sizeof process;
  const bool sends = ::getsockopt(ends[0], SOL_SOCKET, kPeerPidfd, &process, &size) == 0;
  if (sends) ::close(process);
  ::close(ends[0]);
  ::close(ends[1]);
  return sends;
}

}  // namespace farcall::test
