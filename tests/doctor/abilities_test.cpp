// SPDX-License-Identifier: Apache-2.0
//
// System calls that a sandbox forbids: each is really forbidden to a child, which then looks.
#include "doctor/abilities.hpp"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "doctor/fake_tree.hpp"

namespace farcall::test {
namespace {

using doctor::Findings;
using doctor::Severity;

// From now on that system call does what `action` says.
bool forbid(unsigned number, unsigned action) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, action),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = sizeof code / sizeof *code, .filter = code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What a child finds that may not make that call: the text of its findings.
std::string found_without(unsigned number, unsigned action) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text = "no seccomp";
    if (forbid(number, action)) {
      Findings findings;
      doctor::judge(doctor::try_abilities(), findings);
      text.clear();
      for (const auto& finding : findings)
        text += finding.id + ": " + finding.cause + " " + finding.cure + "\n";
    }
    [[maybe_unused]] const ssize_t told = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], piece, sizeof piece)) > 0;)
    text.append(piece, static_cast<std::size_t>(got));
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  return text;
}

struct Case {
  const char* name;
  const char* id;
  unsigned call;
};
std::ostream& operator<<(std::ostream& stream, const Case& one) { return stream << one.name; }

class DoctorAbilityCase : public testing::TestWithParam<Case> {};

TEST_P(DoctorAbilityCase, IsMissedWhereASandboxRefusesIt) {
  const std::string text = found_without(GetParam().call, SECCOMP_RET_ERRNO | EPERM);
  EXPECT_NE(text.find(std::string(GetParam().id) + ": "), std::string::npos) << text;
  EXPECT_NE(text.find("EPERM"), std::string::npos) << text;
  EXPECT_NE(text.find("Permit "), std::string::npos) << text;
}

TEST_P(DoctorAbilityCase, IsMissedWhereASandboxKillsWhoCallsIt) {
  const std::string text = found_without(GetParam().call, SECCOMP_RET_KILL_PROCESS);
  EXPECT_NE(text.find(std::string(GetParam().id) + ": "), std::string::npos) << text;
  EXPECT_NE(text.find("kills whoever calls it"), std::string::npos) << text;
}

const Case kCases[] = {
    {"MemoryFiles", "no-memory-files", SYS_memfd_create},
    {"Membarrier", "no-membarrier", SYS_membarrier},
    {"Futexes", "no-futex-waitv", SYS_futex_waitv},
    {"Pidfds", "no-pidfd", SYS_pidfd_open},
    {"ProcessMemory", "no-process-vm", SYS_process_vm_readv},
    {"UnixSockets", "no-unix-sockets", SYS_bind},
};
INSTANTIATE_TEST_SUITE_P(All, DoctorAbilityCase, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(DoctorAbilities, OfSocketDiagnosisAreMissedWhereNetlinkIs) {
  const std::string text = found_without(SYS_sendto, SECCOMP_RET_ERRNO | EACCES);
  for (const char* const id : {"no-tcp-diag: ", "no-udp-diag: ", "no-unix-diag: "})
    EXPECT_NE(text.find(id), std::string::npos) << text;
}

TEST(DoctorAbilities, ThatTheKernelDoesNotHaveHaveAnotherCure) {
  Findings findings;
  const doctor::Ability ability{.id = "no-udp-diag",
                                .severity = Severity::fault,
                                .what = "sock_diag for UDP",
                                .harm = "nothing works",
                                .cure = "`modprobe udp_diag`"};
  doctor::judge({{.ability = ability, .error = ENOENT, .signal = 0}}, findings);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].cure, "`modprobe udp_diag`.");
  expect_sentences(findings);
}

TEST(DoctorAbilities, LeaveNoChildBehind) {
  (void)doctor::try_abilities();
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace farcall::test
