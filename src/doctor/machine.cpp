// SPDX-License-Identifier: Apache-2.0
#include "doctor/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace farcall::doctor {
namespace {

constexpr const char* kProcessors = "/sys/devices/system/cpu";

void add(Findings& findings, const char* id, Severity severity, std::string cause,
         std::string cure) {
  findings.push_back({id, severity, kThisMachine, std::move(cause), std::move(cure)});
}

void look_at_processors(const Tree& tree, bool own, Findings& findings) {
  const std::size_t online = to_list(tree.line(fmt::format("{}/online", kProcessors))).size();
  const std::size_t allowed =
      to_list(field(tree.text("/proc/self/status").value_or(""), "Cpus_allowed_list")).size();
  if (online == 1)
    add(findings, "one-processor", Severity::warning,
        "There is one processor only, so that two processes can never run at once and each message "
        "costs a change of the process.",
        "Give the machine a second processor; until then waits hand the processor over instead of "
        "spinning, which is the best that can be done here.");
  else if (own && allowed == 1 && online > 1)
    add(findings, "one-processor-allowed", Severity::warning,
        fmt::format("Of {} processors one only is allowed here, by the affinity or a cpuset.",
                    online),
        "Allow a second one (`taskset -c 0,1`, AllowedCPUs= of the service, `docker run "
        "--cpuset-cpus`), so that both ends can run at once.");
}

// Clocks that programs read without a system call; of the others a look costs a microsecond and
// more. kvm-clock and those of Hyper-V and of other architectures have the vDSO, too.
void look_at_clock(const Tree& tree, Findings& findings) {
  const std::string clock =
      tree.line("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  constexpr std::array<std::string_view, 5> kSlow{"hpet", "acpi_pm", "jiffies", "refined-jiffies",
                                                  "xen"};
  if (std::ranges::find(kSlow, clock) == kSlow.end()) return;
  const bool has_tsc =
      tree.line("/sys/devices/system/clocksource/clocksource0/available_clocksource").find("tsc") !=
      std::string::npos;
  add(findings, "slow-clock", Severity::warning,
      fmt::format("The kernel's clock is {}, which programs read by a system call; whoever waits "
                  "looks at the clock again and again.",
                  clock),
      has_tsc
          ? "Write tsc to /sys/devices/system/clocksource/clocksource0/current_clocksource, or "
            "boot with clocksource=tsc."
          : "The kernel has found the processor's counter (tsc) not to be reliable, and says why "
            "in dmesg; on a virtual machine let the host offer kvm-clock or an invariant TSC.");
}

// What is done at each entry into the kernel, as the kernel's own names for it say.
void look_at_mitigations(const Tree& tree, Findings& findings) {
  std::string all;
  const std::string directory = fmt::format("{}/vulnerabilities", kProcessors);
  for (const std::string& name : tree.names(directory)) {
    const std::string state = tree.line(fmt::format("{}/{}", directory, name));
    const bool at_entry =
        state.starts_with("Mitigation") &&
        (state.find("PTI") != state.npos || state.find("Clear CPU buffers") != state.npos ||
         (state.find("IBRS") != state.npos && name == "retbleed") ||
         state.find("untrained return") != state.npos);
    if (at_entry) all += fmt::format("{}{}", all.empty() ? "" : ", ", name);
  }
  if (all.empty()) return;
  add(findings, "mitigations", Severity::note,
      fmt::format("Each entry into the kernel is made slower by what protects against {}.", all),
      "Keep it unless all code on this machine is trusted (mitigations=off); what goes through "
      "shared memory enters the kernel only to sleep and to wake.");
}

// powersave of intel_pstate and amd-pstate in their active modes raises the clock with the load;
// that of all other drivers means the lowest clock always.
void look_at_governor(const Tree& tree, Findings& findings) {
  const std::string directory = fmt::format("{}/cpu0/cpufreq", kProcessors);
  const std::string governor = tree.line(directory + "/scaling_governor");
  const std::string driver = tree.line(directory + "/scaling_driver");
  const std::string preference = tree.line(directory + "/energy_performance_preference");
  const bool own = driver == "intel_pstate" || driver == "amd-pstate-epp";
  if (governor == "powersave" && !own)
    add(findings, "governor", Severity::warning,
        fmt::format("The frequency governor is powersave (driver {}), which keeps processors at "
                    "their lowest clock.",
                    driver.empty() ? "unknown" : driver),
        "Choose another: `cpupower frequency-set -g schedutil`, or performance.");
  else if (preference == "power" || preference == "balance_power")
    add(findings, "energy-preference", Severity::note,
        fmt::format("Processors are told to prefer saving energy ({}), and raise their clock late.",
                    preference),
        "Write balance_performance or performance to energy_performance_preference of each "
        "processor's cpufreq directory.");
}

void look_at_idle_states(const Tree& tree, Findings& findings) {
  constexpr std::uint64_t kDeep = 100;  // us; as long as a waiter spins at most
  std::uint64_t deepest = 0;
  const std::string directory = fmt::format("{}/cpu0/cpuidle", kProcessors);
  for (const std::string& state : tree.names(directory)) {
    const std::string place = fmt::format("{}/{}", directory, state);
    if (tree.number(place + "/disable").value_or(0) != 0) continue;
    deepest = std::max(deepest, tree.number(place + "/latency").value_or(0));
  }
  if (deepest < kDeep) return;
  add(findings, "deep-idle-states", Severity::note,
      fmt::format("An idle processor may sleep so deeply that it needs {} us to wake.", deepest),
      "If the first message after a pause matters, forbid the deepest states (`cpupower idle-set "
      "-D "
      "50`), or hold /dev/cpu_dma_latency open with a small number in it.");
}

void look_at_hypervisor(const Tree& tree, Findings& findings) {
  const std::string cpuinfo = tree.text("/proc/cpuinfo").value_or("");
  if ((" " + field(cpuinfo, "flags") + " ").find(" hypervisor ") == std::string::npos) return;
  const std::string driver = tree.line(fmt::format("{}/cpuidle/current_driver", kProcessors));
  add(findings, "virtual-machine", Severity::note,
      fmt::format("This is a virtual machine{}: to wake an idle processor takes the hypervisor's "
                  "help, some ten microseconds.",
                  driver == "haltpoll" ? " (its idle processors poll before they halt)" : ""),
      driver == "haltpoll"
          ? "Nothing need be done: ends that talk steadily spin and are not woken; a longer "
            "guest_halt_poll_ns of the module haltpoll keeps idle ones awake for longer."
          : "Nothing need be done for ends that talk steadily, which spin and are not woken; for "
            "others let the guest poll before it halts (cpuidle_haltpoll), or the host "
            "(halt_poll_ns of kvm).");
}

void look_at_nodes(const Tree& tree, Findings& findings) {
  const std::size_t nodes = to_list(tree.line("/sys/devices/system/node/has_cpu")).size();
  if (nodes < 2) return;
  add(findings, "several-nodes", Severity::note,
      fmt::format("There are {} NUMA nodes with processors; a cache line that goes from one to "
                  "another takes several times as long as within one.",
                  nodes),
      "Keep programs that talk to each other on one node: `numactl --cpunodebind=0 --membind=0`.");
}

// The share of a line "some avg10=1.50 avg60=0.80 ..." over the last minute.
std::optional<double> pressure(const Tree& tree) {
  const std::string line = tree.line("/proc/pressure/cpu");
  const std::size_t at = line.find("avg60=");
  if (!line.starts_with("some") || at == line.npos) return std::nullopt;
  return std::strtod(line.c_str() + at + 6, nullptr);
}

void look_at_load(const Tree& tree, Findings& findings) {
  constexpr double kMuch = 25;
  if (const auto share = pressure(tree); share && *share >= kMuch)
    add(findings, "processors-busy", Severity::warning,
        fmt::format("In {:.0f} % of the last minute some thread that could run had to wait for a "
                    "processor.",
                    *share),
        "Move other work away or give it less (`nice`, a cgroup's cpu.weight), or add processors: "
        "where both ends cannot run at once, each message waits for its turn.");
}

void look_at_stolen_time(const Tree& tree, Findings& findings) {
  constexpr double kMuch = 5;  // per cent
  const std::string line = tree.line("/proc/stat");
  const auto numbers = words(line);
  constexpr std::size_t kSteal = 8;
  if (numbers.size() <= kSteal || numbers[0] != "cpu") return;
  double all = 0;
  for (std::size_t i = 1; i <= kSteal; ++i)
    all += static_cast<double>(to_number(numbers[i]).value_or(0));
  const double stolen = static_cast<double>(to_number(numbers[kSteal]).value_or(0));
  if (all <= 0 || 100 * stolen / all < kMuch) return;
  add(findings, "stolen-time", Severity::warning,
      fmt::format(
          "The hypervisor has kept {:.0f} % of the processors' time from this machine since "
          "it was started.",
          100 * stolen / all),
      "Ask for processors of its own, or move the machine to a host that is less busy: an end that "
      "is not running cannot answer.");
}

// Of the functions that are used where they are there.
void look_at_kernel(const Tree& tree, Findings& findings) {
  const std::string release = tree.line("/proc/sys/kernel/osrelease");
  const std::size_t dot = release.find('.');
  if (dot == release.npos) return;
  const auto major = to_number(std::string_view(release).substr(0, dot));
  const std::size_t end = release.find_first_not_of("0123456789", dot + 1);
  const auto minor = to_number(std::string_view(release).substr(
      dot + 1, end == release.npos ? release.npos : end - dot - 1));
  if (!major || !minor) return;
  const std::uint64_t version = *major * 1000 + *minor;
  std::string lacks;
  if (version < 5003) lacks += ", pidfd_open (5.3)";
  if (version < 5006) lacks += ", pidfd_getfd (5.6)";
  if (version < 5016) lacks += ", futex_waitv (5.16)";
  if (version < 6003) lacks += ", memory files that are never executable (6.3)";
  if (lacks.empty()) return;
  const bool old = version < 5016;
  add(findings, "old-kernel", old ? Severity::warning : Severity::note,
      fmt::format("Linux {} does not have {}.", release, lacks.substr(2)),
      old ? "Run Linux 6.1 or later: without these, servers of calls are woken by a socket instead "
            "of "
            "a futex, and connections are given back to the kernel less smoothly."
          : "Nothing need be done: farcall does without.");
}

}  // namespace

void examine_machine(const Tree& tree, bool own, Findings& findings) {
  look_at_processors(tree, own, findings);
  look_at_clock(tree, findings);
  look_at_mitigations(tree, findings);
  look_at_governor(tree, findings);
  look_at_idle_states(tree, findings);
  look_at_hypervisor(tree, findings);
  look_at_nodes(tree, findings);
  look_at_load(tree, findings);
  look_at_stolen_time(tree, findings);
  look_at_kernel(tree, findings);
}

}  // namespace farcall::doctor
