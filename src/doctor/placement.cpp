// SPDX-License-Identifier: Apache-2.0
#include "doctor/placement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace farcall::doctor {
namespace {

std::set<std::string> nodes_of(const Tree& tree, const std::vector<unsigned>& processors) {
  constexpr const char* kNodes = "/sys/devices/system/node";
  std::set<std::string> nodes;
  for (const std::string& name : tree.names(kNodes)) {
    if (!name.starts_with("node")) continue;
    const auto there = to_list(tree.line(fmt::format("{}/{}/cpulist", kNodes, name)));
    if (std::ranges::any_of(processors, [&](unsigned processor) {
          return std::ranges::find(there, processor) != there.end();
        }))
      nodes.insert(name);
  }
  return nodes;
}

bool share_a_core(const Tree& tree, unsigned one, unsigned other) {
  const auto siblings = to_list(
      tree.line(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", one)));
  return std::ranges::find(siblings, other) != siblings.end();
}

bool have_common(const std::set<std::string>& one, const std::set<std::string>& other) {
  return std::ranges::any_of(one, [&](const std::string& name) { return other.contains(name); });
}

}  // namespace

void judge_placement(const Tree& tree, const Process& one, const Process& other,
                     Findings& findings) {
  if (one.processors.empty() || other.processors.empty() || one.pid == other.pid) return;
  const std::string about = fmt::format("{} and {}", describe(one), describe(other));
  const auto add = [&](const char* id, Severity severity, std::string cause, std::string cure) {
    findings.push_back({id, severity, about, std::move(cause), std::move(cure)});
  };
  if (one.processors.size() == 1 && one.processors == other.processors) {
    add("same-processor", Severity::note,
        fmt::format("Both may run on processor {} only: they hand it to each other with each "
                    "message, and neither can work while the other does.",
                    one.processors.front()),
        fmt::format(
            "That is the best for short questions and answers on a quiet machine; for streams "
            "let one run elsewhere: `taskset -acp 0-{} {}`.",
            std::max(1U, one.processors.front()), one.pid));
    return;
  }
  if (one.processors.size() == 1 && other.processors.size() == 1 &&
      share_a_core(tree, one.processors.front(), other.processors.front()))
    add("same-core", Severity::note,
        fmt::format("Processors {} and {}, to which they are pinned, are two threads of one core: "
                    "while one waits and spins, the other is slower.",
                    one.processors.front(), other.processors.front()),
        "Pin them to two cores, if streams or work matter more than the time of one message.");
  const auto mine = nodes_of(tree, one.processors);
  const auto theirs = nodes_of(tree, other.processors);
  if (!mine.empty() && !theirs.empty() && !have_common(mine, theirs))
    add("different-nodes", Severity::warning,
        fmt::format("They may run on different NUMA nodes only ({} and {}): each message crosses "
                    "from one to the other.",
                    *mine.begin(), *theirs.begin()),
        fmt::format(
            "Let both run on one: `numactl --cpunodebind={0} --membind={0}`, or AllowedCPUs= "
            "of the service.",
            mine.begin()->substr(4)));
}

}  // namespace farcall::doctor
