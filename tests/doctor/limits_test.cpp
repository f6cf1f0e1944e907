// SPDX-License-Identifier: Apache-2.0
//
// Resource limits of processes that may be any, and of one that really has them.
#include "doctor/limits.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "doctor/fake_tree.hpp"

namespace farcall::test {
namespace {

using doctor::Findings;
using doctor::Severity;

Findings examine(const doctor::Tree& tree, const std::string& pid) {
  Findings findings;
  doctor::examine_limits(tree, pid, "a process", findings);
  return findings;
}

struct Case {
  const char* name;
  const char* id;
  Severity severity;
  const char* line;
};
std::ostream& operator<<(std::ostream& stream, const Case& one) { return stream << one.name; }

class DoctorLimitCase : public testing::TestWithParam<Case> {};

TEST_P(DoctorLimitCase, IsFoundAloneWithCauseAndCure) {
  FakeTree fake;
  fake.process(7, "x")
      .maps(7, "7f2000000000-7f2000001000 r-xp 00000000 08:01 8 /lib/libfarcall-messages.so.0.1")
      .file("/proc/7/limits", GetParam().line);
  const Findings findings = examine(fake.tree(), "7");
  ASSERT_EQ(ids(findings), std::string(GetParam().id) + " ");
  EXPECT_EQ(findings[0].severity, GetParam().severity);
  EXPECT_EQ(findings[0].about, "a process");
  expect_sentences(findings);
}

const Case kCases[] = {
    {"FewDescriptors", "few-descriptors", Severity::warning, "Max open files 256 4096 files\n"},
    {"DescriptorsCanGrow", "descriptors-can-grow", Severity::note,
     "Max open files 1024 524288 files\n"},
    {"FewThreads", "few-threads", Severity::warning, "Max processes 100 100 processes\n"},
    {"AddressSpace", "address-space", Severity::warning,
     "Max address space 1073741824 unlimited bytes\n"},
    {"LockedMemory", "locked-memory", Severity::note, "Max locked memory 16384 65536 bytes\n"},
    {"QueueBytes", "message-queue-bytes", Severity::note, "Max msgqueue size 1000 1000 bytes\n"},
    {"NoRealTime", "no-real-time", Severity::note, "Max realtime priority 0 0 \n"},
};
INSTANTIATE_TEST_SUITE_P(All, DoctorLimitCase, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(DoctorLimits, AreNothingWhereTheyAreUsual) {
  FakeTree fake;
  fake.process(7, "x");
  EXPECT_EQ(ids(examine(fake.tree(), "7")), "");
}

TEST(DoctorLimits, CountWhatIsInUse) {
  FakeTree fake;
  fake.process(7, "x").file("/proc/7/limits", "Max open files 20 4096 files\n");
  for (int fd = 0; fd < 18; ++fd) fake.descriptor(7, fd, "/dev/null");
  const Findings findings = examine(fake.tree(), "7");
  ASSERT_EQ(ids(findings), "descriptors-exhausted ");
  EXPECT_EQ(findings[0].severity, Severity::fault);
  EXPECT_NE(findings[0].cause.find("18 of 20"), std::string::npos);
  expect_sentences(findings);
}

TEST(DoctorLimits, DoNotBindRoot) {
  FakeTree fake;
  fake.process(7, "x")
      .file("/proc/7/limits", "Max processes 100 100 processes\nMax realtime priority 0 0 \n")
      .file("/proc/7/status",
            status_of(7, "x", "Uid", "0\t0\t0\t0") + "CapEff:\t000001ffffffffff\n");
  EXPECT_EQ(find(examine(fake.tree(), "7"), "few-threads"), nullptr);
}

// Of a child that has lowered its own limits, as the kernel shows it.
TEST(DoctorLimits, AreReadOfAProcessThatRuns) {
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit few{.rlim_cur = 64, .rlim_max = 64};
    const rlimit little{.rlim_cur = 1000, .rlim_max = 1000};
    const char done =
        ::setrlimit(RLIMIT_NOFILE, &few) == 0 && ::setrlimit(RLIMIT_MSGQUEUE, &little) == 0 ? 'y'
                                                                                            : 'n';
    [[maybe_unused]] const ssize_t told = ::write(pipe_ends[1], &done, 1);
    for (;;) ::pause();
  }
  char done = 0;
  EXPECT_EQ(::read(pipe_ends[0], &done, 1), 1);
  const Findings findings = examine(doctor::Tree(), std::to_string(child));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(pipe_ends[0]);
  ::close(pipe_ends[1]);
  ASSERT_EQ(done, 'y');
  EXPECT_NE(find(findings, "few-descriptors"), nullptr) << ids(findings);
  EXPECT_NE(find(findings, "message-queue-bytes"), nullptr) << ids(findings);
}

}  // namespace
}  // namespace farcall::test
