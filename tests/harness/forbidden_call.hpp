// SPDX-License-Identifier: Apache-2.0
//
// A system call that a program forbids to itself (seccomp(2)).
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace farcall::test {

// What becomes of it from here on in this thread, and those that it makes. False: it could not be
// said.
inline bool answer_call(unsigned number, unsigned verdict) {
  const std::array filter{
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, verdict),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = filter.size(), .filter = const_cast<sock_filter*>(filter.data())};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// It fails so.
inline bool forbid_call(unsigned number, unsigned error = EPERM) {
  return answer_call(number, SECCOMP_RET_ERRNO | error);
}
// It is a SIGSYS.
inline bool trap_call(unsigned number) { return answer_call(number, SECCOMP_RET_TRAP); }

}  // namespace farcall::test
