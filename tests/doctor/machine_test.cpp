// SPDX-License-Identifier: Apache-2.0
//
// What is found of machines that may be any, and of the limits of their systems.
#include "doctor/machine.hpp"

#include <gtest/gtest.h>

#include "doctor/costs.hpp"
#include "doctor/fake_tree.hpp"
#include "doctor/module.hpp"

namespace farcall::test {
namespace {

using doctor::Findings;
using doctor::Severity;

// One in which nothing is wrong.
void make_healthy(FakeTree& fake) {
  const std::string cpu = "/sys/devices/system/cpu";
  fake.file(cpu + "/online", "0-3\n")
      .file("/proc/self/status", status_of(1, "self"))
      .file("/sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n")
      .file(cpu + "/vulnerabilities/meltdown", "Not affected\n")
      .file(cpu + "/cpu0/cpufreq/scaling_governor", "performance\n")
      .file(cpu + "/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n")
      .file(cpu + "/cpu0/cpuidle/state1/latency", "2\n")
      .file("/proc/cpuinfo", "flags\t\t: fpu tsc sse2\n")
      .file("/sys/devices/system/node/has_cpu", "0\n")
      .file("/proc/pressure/cpu", "some avg10=90.00 avg60=3.00 avg300=1.00 total=1\n")
      .file("/proc/stat", "cpu  100 0 100 800 0 0 0 10 0 0\n")
      .file("/proc/sys/kernel/osrelease", "6.6.1-generic\n")
      .file("/proc/sys/kernel/yama/ptrace_scope", "0\n")
      .file("/proc/sys/net/core/wmem_max", "212992\n")
      .file("/proc/sys/net/core/somaxconn", "4096\n")
      .file("/proc/sys/fs/pipe-user-pages-soft", "0\n");
}

Findings examine(const FakeTree& fake) {
  Findings findings;
  doctor::examine_machine(fake.tree(), true, findings);
  doctor::examine_system(fake.tree(), findings);
  return findings;
}

TEST(DoctorMachine, FindsNothingWhereNothingIsWrong) {
  FakeTree fake;
  make_healthy(fake);
  EXPECT_EQ(ids(examine(fake)), "");
}

TEST(DoctorMachine, SaysNothingOfWhatTheKernelDoesNotTell) {
  const FakeTree empty;
  EXPECT_EQ(ids(examine(empty)), "");
}

struct Case {
  const char* name;
  const char* id;
  Severity severity;
  const char* path;
  const char* contents;
  const char* says = "";  // in its cause
};
std::ostream& operator<<(std::ostream& stream, const Case& one) { return stream << one.name; }

class DoctorMachineCase : public testing::TestWithParam<Case> {};

TEST_P(DoctorMachineCase, IsFoundAloneWithCauseAndCure) {
  const Case& one = GetParam();
  FakeTree fake;
  make_healthy(fake);
  fake.file(one.path, one.contents);
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), std::string(one.id) + " ");
  EXPECT_EQ(findings[0].severity, one.severity);
  EXPECT_NE(findings[0].cause.find(one.says), std::string::npos) << findings[0].cause;
  expect_sentences(findings);
}

constexpr const char* kClock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
constexpr const char* kMeltdown = "/sys/devices/system/cpu/vulnerabilities/meltdown";
constexpr const char* kGovernor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
constexpr const char* kPreference =
    "/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference";

const Case kCases[] = {
    {"OneProcessor", "one-processor", Severity::warning, "/sys/devices/system/cpu/online", "0\n"},
    {"ClockHpet", "slow-clock", Severity::warning, kClock, "hpet\n", "hpet"},
    {"ClockAcpi", "slow-clock", Severity::warning, kClock, "acpi_pm\n", "acpi_pm"},
    {"Pti", "mitigations", Severity::note, kMeltdown, "Mitigation: PTI\n", "meltdown"},
    {"Powersave", "governor", Severity::warning, kGovernor, "powersave\n", "acpi-cpufreq"},
    {"EnergyPreference", "energy-preference", Severity::note, kPreference, "balance_power\n"},
    {"DeepIdleState", "deep-idle-states", Severity::note,
     "/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "890\n", "890 us"},
    {"VirtualMachine", "virtual-machine", Severity::note, "/proc/cpuinfo",
     "flags\t\t: fpu hypervisor sse2\n"},
    {"TwoNodes", "several-nodes", Severity::note, "/sys/devices/system/node/has_cpu", "0-1\n",
     "2 NUMA nodes"},
    {"Busy", "processors-busy", Severity::warning, "/proc/pressure/cpu",
     "some avg10=1.00 avg60=61.20 avg300=1.00 total=1\n", "61 %"},
    {"StolenTime", "stolen-time", Severity::warning, "/proc/stat",
     "cpu  100 0 100 700 0 0 0 100 0 0\n", "10 %"},
    {"OldKernel", "old-kernel", Severity::warning, "/proc/sys/kernel/osrelease",
     "5.10.0-28-amd64\n", "futex_waitv"},
    {"OlderKernel", "old-kernel", Severity::note, "/proc/sys/kernel/osrelease", "6.1.0\n", "6.3"},
    {"SendBuffer", "socket-send-buffer", Severity::warning, "/proc/sys/net/core/wmem_max", "4096\n",
     "net.core.wmem_max is 4096"},
    {"ReceiveBuffer", "socket-receive-buffer", Severity::warning, "/proc/sys/net/core/rmem_max",
     "4096\n"},
    {"Backlog", "listen-backlog", Severity::warning, "/proc/sys/net/core/somaxconn", "16\n"},
    {"UnixDatagrams", "unix-datagrams", Severity::warning, "/proc/sys/net/unix/max_dgram_qlen",
     "1\n"},
    {"QueueLength", "message-queue-length", Severity::note, "/proc/sys/fs/mqueue/msg_max", "5\n"},
    {"QueueSize", "message-queue-size", Severity::note, "/proc/sys/fs/mqueue/msgsize_max", "128\n"},
    {"SystemVMemory", "system-v-shared-memory", Severity::note, "/proc/sys/kernel/shmmax",
     "33554432\n"},
    {"SystemVMessage", "system-v-message-size", Severity::note, "/proc/sys/kernel/msgmax",
     "4096\n"},
    {"PipeSize", "pipe-size", Severity::note, "/proc/sys/fs/pipe-max-size", "65536\n"},
    {"PipePages", "pipe-pages", Severity::note, "/proc/sys/fs/pipe-user-pages-soft", "16\n"},
    {"OpenFiles", "open-files-of-system", Severity::warning, "/proc/sys/fs/file-max", "1000\n"},
    {"Mappings", "memory-mappings", Severity::warning, "/proc/sys/vm/max_map_count", "1000\n"},
    {"PtraceScopeOfChildren", "ptrace-scope", Severity::note, "/proc/sys/kernel/yama/ptrace_scope",
     "1\n"},
    {"PtraceScopeOfNobody", "ptrace-scope", Severity::warning, "/proc/sys/kernel/yama/ptrace_scope",
     "3\n"},
    {"PreloadFile", "preload-file", Severity::note, "/etc/ld.so.preload", "/lib/libother.so\n",
     "/lib/libother.so"},
};
INSTANTIATE_TEST_SUITE_P(All, DoctorMachineCase, testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(DoctorMachine, TellsOneProcessorThatIsAllowedFromOneThatIsThere) {
  FakeTree fake;
  make_healthy(fake);
  fake.file("/proc/self/status", status_of(1, "self", "Cpus_allowed_list", "2"));
  const Findings findings = examine(fake);
  ASSERT_EQ(ids(findings), "one-processor-allowed ");
  EXPECT_NE(findings[0].cause.find("Of 4 processors one only"), std::string::npos);
  expect_sentences(findings);
}

TEST(DoctorMachine, TakesPowersaveOfIntelsDriverForWhatItIs) {
  FakeTree fake;
  make_healthy(fake);
  fake.file(kGovernor, "powersave\n")
      .file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
  EXPECT_EQ(ids(examine(fake)), "");
}

TEST(DoctorMachine, DoesNotCountIdleStatesThatAreForbidden) {
  FakeTree fake;
  make_healthy(fake);
  fake.file("/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "890\n")
      .file("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1\n");
  EXPECT_EQ(ids(examine(fake)), "");
}

TEST(DoctorMachine, SurvivesFilesThatHoldNonsense) {
  for (const char* const nonsense : {"", "\n", "-1\n", "99999999999999999999999\n", "0-\n", "a b c",
                                     "4294967295-4294967290,7-4000000000\n", "\x01\xff:\n"}) {
    FakeTree fake;
    make_healthy(fake);
    for (const Case& one : kCases) fake.file(one.path, nonsense);
    fake.file("/proc/self/status", nonsense);
    expect_sentences(examine(fake));
  }
}

// --- what is measured

TEST(DoctorCosts, AreMeasuredAndPlausible) {
  const doctor::Costs costs = doctor::measure_costs();
  EXPECT_GT(costs.system_call_ns, 0);
  EXPECT_GT(costs.clock_ns, 0);
  EXPECT_GE(costs.wake_up_ns, 0);
}

TEST(DoctorCosts, AreNothingWhereTheyAreUsual) {
  Findings findings;
  doctor::judge({.system_call_ns = 100, .clock_ns = 25, .wake_up_ns = 3000}, findings);
  EXPECT_EQ(ids(findings), "");
}

TEST(DoctorCosts, AreFoundWhereTheyAreHigh) {
  Findings findings;
  doctor::judge({.system_call_ns = 2000, .clock_ns = 900, .wake_up_ns = 45'000}, findings);
  EXPECT_EQ(ids(findings), "clock-expensive system-calls-expensive wake-ups-expensive ");
  EXPECT_NE(findings[0].cause.find("900 ns"), std::string::npos);
  EXPECT_NE(findings[2].cause.find("45 us"), std::string::npos);
  expect_sentences(findings);
}

// --- the module

TEST(DoctorModule, IsANoteWhereItIsMissingAndAFaultWhereItIsAskedFor) {
  const FakeTree empty;
  const doctor::Module module = doctor::look_at_module(empty.tree());
  EXPECT_FALSE(module.loaded);
  Findings findings;
  doctor::judge(module, false, findings);
  doctor::judge(module, true, findings);
  ASSERT_EQ(ids(findings), "module-missing module-missing ");
  EXPECT_EQ(findings[0].severity, Severity::note);
  EXPECT_EQ(findings[1].severity, Severity::fault);
  expect_sentences(findings);
}

TEST(DoctorModule, IsFoundWhereItMayNotBeUsed) {
  FakeTree fake;
  fake.file("/sys/module/stplr/version", "1\n").file("/dev/stplr", "");  // and no device
  const doctor::Module module = doctor::look_at_module(fake.tree());
  EXPECT_TRUE(module.loaded);
  Findings findings;
  doctor::judge(module, false, findings);
  ASSERT_EQ(ids(findings), "module-access ");
  EXPECT_EQ(findings[0].severity, Severity::warning);
  expect_sentences(findings);
}

TEST(DoctorModule, IsFoundWhereItIsOfAnotherVersion) {
  Findings findings;
  doctor::judge({.loaded = true, .error = 0, .interface = 2}, false, findings);
  ASSERT_EQ(ids(findings), "module-version ");
  EXPECT_NE(findings[0].cause.find("interface 2"), std::string::npos);
  expect_sentences(findings);
}

}  // namespace
}  // namespace farcall::test
