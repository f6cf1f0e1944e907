// SPDX-License-Identifier: Apache-2.0
//
// Limits of control groups, of both versions.
#include <gtest/gtest.h>

#include "doctor/fake_tree.hpp"
#include "doctor/limits.hpp"

namespace farcall::test {
namespace {

using doctor::Findings;
using doctor::Severity;

constexpr const char* kGroup = "/sys/fs/cgroup/user.slice/service";

void make_group(FakeTree& fake) {
  fake.process(7, "x")
      .file("/proc/7/cgroup", "0::/user.slice/service\n")
      .file("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
      .file(std::string(kGroup) + "/cpu.max", "max 100000\n");
}

Findings examine(const FakeTree& fake) {
  Findings findings;
  doctor::examine_group(fake.tree(), "7", "a process", findings);
  expect_sentences(findings);
  return findings;
}

TEST(DoctorGroups, AreNothingWhereTheyLimitNothing) {
  FakeTree fake;
  make_group(fake);
  EXPECT_EQ(ids(examine(fake)), "");
}

TEST(DoctorGroups, AreFoundWhereTheyGiveLessThanTwoProcessors) {
  FakeTree fake;
  make_group(fake);
  fake.file(std::string(kGroup) + "/cpu.max", "50000 100000\n");
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), "processor-quota ");
  EXPECT_EQ(findings[0].severity, Severity::note);
  EXPECT_NE(findings[0].cause.find("0.5 processors"), std::string::npos) << findings[0].cause;
}

TEST(DoctorGroups, AreFoundWhereTheyHaveThrottled) {
  FakeTree fake;
  make_group(fake);
  fake.file(std::string(kGroup) + "/cpu.max", "300000 100000\n")
      .file(std::string(kGroup) + "/cpu.stat", "usage_usec 5\nnr_periods 100\nnr_throttled 42\n");
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), "throttled ");
  EXPECT_EQ(findings[0].severity, Severity::warning);
  EXPECT_NE(findings[0].cause.find("42 times"), std::string::npos) << findings[0].cause;
}

TEST(DoctorGroups, AreNotBlamedForWhatHappensNowAndThen) {
  FakeTree fake;
  make_group(fake);
  fake.file(std::string(kGroup) + "/cpu.max", "3200000 100000\n")
      .file(std::string(kGroup) + "/cpu.stat", "nr_periods 100000\nnr_throttled 3\n");
  EXPECT_EQ(ids(examine(fake)), "");
}

TEST(DoctorGroups, AreToGiveMoreThanTheyDo) {
  FakeTree fake;
  make_group(fake);
  fake.file(std::string(kGroup) + "/cpu.max", "3200000 100000\n")
      .file(std::string(kGroup) + "/cpu.stat", "nr_periods 100\nnr_throttled 3\n");
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), "throttled ");
  EXPECT_NE(findings[0].cure.find("CPUQuota=6400%"), std::string::npos) << findings[0].cure;
}

TEST(DoctorGroups, AreFoundWhereOneAboveThemHasThrottled) {
  FakeTree fake;
  make_group(fake);
  fake.file(std::string(kGroup) + "/cpu.max", "400000 100000\n")
      .file("/sys/fs/cgroup/user.slice/cpu.max", "800000 100000\n")
      .file("/sys/fs/cgroup/user.slice/cpu.stat", "nr_periods 100\nnr_throttled 50\n");
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), "throttled ");
  EXPECT_NE(findings[0].cure.find("/sys/fs/cgroup/user.slice/cpu.max"), std::string::npos)
      << findings[0].cure;
}

TEST(DoctorGroups, OfTheFirstVersionCountFilesOfThoseBelowThem) {
  FakeTree fake;
  const std::string box = "/sys/fs/cgroup/memory/box";
  fake.process(7, "x")
      .file("/proc/7/cgroup", "4:memory:/box\n")
      .file(box + "/memory.limit_in_bytes", "104857600\n")
      .file(box + "/memory.usage_in_bytes", "104000000\n")
      .file(box + "/memory.stat",
            "inactive_file 0\nactive_file 0\ntotal_inactive_file 60000000\n"
            "total_active_file 30000000\n");
  EXPECT_EQ(ids(examine(fake)), "");
}

TEST(DoctorGroups, BindWhatIsBelowThem) {
  FakeTree fake;
  make_group(fake);
  fake.file("/sys/fs/cgroup/user.slice/cpu.max", "20000 100000\n");
  EXPECT_EQ(ids(examine(fake)), "processor-quota ");
}

TEST(DoctorGroups, AreFoundWhereMemoryIsNearlyUsedByMoreThanFiles) {
  FakeTree fake;
  make_group(fake);
  const std::string group = kGroup;
  fake.file(group + "/memory.max", "104857600\n").file(group + "/memory.current", "104000000\n");
  EXPECT_EQ(ids(examine(fake)), "memory-nearly-used ");
  fake.file(group + "/memory.stat", "anon 1000\ninactive_file 60000000\nactive_file 30000000\n");
  EXPECT_EQ(ids(examine(fake)), "");  // which the kernel would drop
}

TEST(DoctorGroups, AreFoundWhereProcessesAreNearlyUsedUp) {
  FakeTree fake;
  make_group(fake);
  fake.file(std::string(kGroup) + "/pids.max", "100\n")
      .file(std::string(kGroup) + "/pids.current", "95\n");
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), "tasks-nearly-used ");
  EXPECT_NE(findings[0].cause.find("95 of 100"), std::string::npos);
}

TEST(DoctorGroups, OfTheFirstVersionAreReadToo) {
  FakeTree fake;
  fake.process(7, "x")
      .file("/proc/7/cgroup", "4:memory:/box\n2:cpu,cpuacct:/box\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "50000\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n")
      .file("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(ids(examine(fake)), "processor-quota ");
}

TEST(DoctorGroups, WhosePathsLeadElsewhereAreNotFollowed) {
  FakeTree fake;
  make_group(fake);
  fake.file("/proc/7/cgroup", "0::/../../etc\n").file("/etc/cpu.max", "50000 100000\n");
  EXPECT_EQ(ids(examine(fake)), "");
}

}  // namespace
}  // namespace farcall::test
