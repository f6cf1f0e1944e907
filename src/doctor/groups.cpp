// SPDX-License-Identifier: Apache-2.0
//
// Limits of control groups: those of a group bind all below it, so each one on the way up counts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "doctor/limits.hpp"

namespace farcall::doctor {
namespace {

constexpr int kMostLevels = 32;

// Where the files of a hierarchy are: "" is that of version 2, which is found in two places.
struct Group {
  std::string mount;
  std::string path;  // below that; "/" at its root
};

std::optional<Group> group_of(const Tree& tree, const std::string& pid,
                              std::string_view controller) {
  const std::string text = tree.text(fmt::format("/proc/{}/cgroup", pid)).value_or("");
  for (const std::string_view line : lines(text)) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == line.npos ? first : first + 1);
    if (second == line.npos) continue;
    const std::string_view names = line.substr(first + 1, second - first - 1);
    if (names != controller &&
        fmt::format(",{},", names).find(fmt::format(",{},", controller)) == std::string::npos)
      continue;
    std::string mount = fmt::format("/sys/fs/cgroup/{}", controller.empty() ? "unified" : names);
    if (controller.empty() && tree.exists("/sys/fs/cgroup/cgroup.controllers"))
      mount = "/sys/fs/cgroup";
    return Group{.mount = std::move(mount), .path = std::string(line.substr(second + 1))};
  }
  return std::nullopt;
}

// Calls `look` with the directory of the group, of the one above it and so on.
template <class Look>
void for_each_level(const std::optional<Group>& group, Look look) {
  if (!group || group->path.find("..") != std::string::npos) return;
  std::string path = group->path;
  for (int level = 0; level < kMostLevels; ++level) {
    if (look(group->mount + (path == "/" ? "" : path)) || path.empty() || path == "/") return;
    path.erase(path.rfind('/'));
  }
}

// Of lines "name value" that of `name`; or empty.
std::string_view value_of(std::string_view text, std::string_view name) {
  for (const std::string_view line : lines(text))
    if (const auto pair = words(line); pair.size() == 2 && pair[0] == name) return pair[1];
  return {};
}

struct Quota {
  double processors = 0;
  std::uint64_t periods = 0;    // in which it wanted a processor, since the group was made
  std::uint64_t throttled = 0;  // of them
  std::string file;

  // Now and then it is what a quota is for.
  [[nodiscard]] bool is_short() const { return throttled * 100 > periods; }
};

// "max 100000" or "50000 100000"
std::optional<Quota> quota_in(const Tree& tree, const std::string& directory) {
  const std::string line = tree.line(directory + "/cpu.max");
  const auto values = words(line);
  std::optional<std::uint64_t> quota;
  std::optional<std::uint64_t> period;
  std::string file = directory + "/cpu.max";
  if (values.size() == 2) {
    quota = to_number(values[0]);
    period = to_number(values[1]);
  } else {
    file = directory + "/cpu.cfs_quota_us";
    quota = tree.number(file);  // -1 is no number
    period = tree.number(directory + "/cpu.cfs_period_us");
  }
  if (!quota || !period || *period == 0) return std::nullopt;
  Quota found{.processors = static_cast<double>(*quota) / static_cast<double>(*period),
              .file = std::move(file)};
  const std::string stat = tree.text(directory + "/cpu.stat").value_or("");
  found.periods = to_number(value_of(stat, "nr_periods")).value_or(0);
  found.throttled = to_number(value_of(stat, "nr_throttled")).value_or(0);
  return found;
}

std::string cure_of(const Quota& quota) {
  // More than there is now, and at least two.
  const double wanted = std::max(2.0, std::ceil(quota.processors * 2));
  return fmt::format(
      "Raise {} to {:.0f} processors or more (CPUQuota={:.0f}% of the service, `docker run "
      "--cpus {:.0f}`), or use cpu.weight instead.",
      quota.file, wanted, wanted * 100, wanted);
}

void look_at_quota(const Tree& tree, const std::string& pid, const std::string& about,
                   Findings& findings) {
  std::optional<Quota> least;
  bool is_short = false;
  for (const char* const controller : {"", "cpu"})
    for_each_level(group_of(tree, pid, controller), [&](const std::string& directory) {
      const auto quota = quota_in(tree, directory);
      if (!quota) return false;
      if (!least || quota->processors < least->processors) least = quota;
      if (!quota->is_short()) return false;
      is_short = true;
      findings.push_back(
          {"throttled", Severity::warning, about,
           fmt::format("Its control group, or one above that, may use {:.3g} processors and was "
                       "stopped for the rest of a period {} times of {}: whoever waits for it then "
                       "waits for tens of milliseconds.",
                       quota->processors, quota->throttled, quota->periods),
           cure_of(*quota)});
      return false;
    });
  if (is_short || !least || least->processors >= 2) return;
  findings.push_back(
      {"processor-quota", Severity::note, about,
       fmt::format("Its control group may use {:.3g} processors: two ends that both run use that "
                   "up, and stand still until the next period.",
                   least->processors),
       cure_of(*least)});
}

std::optional<std::uint64_t> first_number(const Tree& tree, const std::string& one,
                                          const std::string& other) {
  const auto number = tree.number(one);
  return number ? number : tree.number(other);
}

// Without what the kernel can drop: copies of files. With all groups below it, of which the first
// version tells apart.
std::optional<std::uint64_t> memory_in_use(const Tree& tree, const std::string& directory) {
  auto used = tree.number(directory + "/memory.current");
  const std::string_view below = used ? "" : "total_";
  if (!used) used = tree.number(directory + "/memory.usage_in_bytes");
  if (!used) return used;
  const std::string stat = tree.text(directory + "/memory.stat").value_or("");
  for (const char* const name : {"inactive_file", "active_file"})
    *used -=
        std::min(*used, to_number(value_of(stat, fmt::format("{}{}", below, name))).value_or(0));
  return used;
}

void look_at_memory(const Tree& tree, const std::string& pid, const std::string& about,
                    Findings& findings) {
  for (const char* const controller : {"", "memory"})
    for_each_level(group_of(tree, pid, controller), [&](const std::string& directory) {
      const auto most =
          first_number(tree, directory + "/memory.max", directory + "/memory.limit_in_bytes");
      const auto used = memory_in_use(tree, directory);
      if (!most || !used || *most == 0 || *used < *most / 10 * 9) return false;
      findings.push_back(
          {"memory-nearly-used", Severity::warning, about,
           fmt::format("Its control group uses {} of {} MiB: shared memory counts there, and a "
                       "process that finds none is killed or stays with the kernel's sockets.",
                       *used >> 20, *most >> 20),
           fmt::format(
               "Raise the limit of {} (MemoryMax= of the service, `docker run --memory`), or "
               "make rings smaller: FARCALL_RING_BYTES=64K.",
               directory)});
      return true;
    });
}

void look_at_tasks(const Tree& tree, const std::string& pid, const std::string& about,
                   Findings& findings) {
  for (const char* const controller : {"", "pids"})
    for_each_level(group_of(tree, pid, controller), [&](const std::string& directory) {
      const auto most = tree.number(directory + "/pids.max");
      const auto used = tree.number(directory + "/pids.current");
      if (!most || !used || *used * 10 < *most * 9) return false;
      findings.push_back(
          {"tasks-nearly-used", Severity::warning, about,
           fmt::format("Its control group has {} of {} processes and threads: a server "
                       "of calls gets no more threads.",
                       *used, *most),
           fmt::format("Raise {}/pids.max (TasksMax= of the service, `docker run "
                       "--pids-limit`).",
                       directory)});
      return true;
    });
}

}  // namespace

void examine_group(const Tree& tree, const std::string& pid, const std::string& about,
                   Findings& findings) {
  look_at_quota(tree, pid, about, findings);
  look_at_memory(tree, pid, about, findings);
  look_at_tasks(tree, pid, about, findings);
}

}  // namespace farcall::doctor
