// SPDX-License-Identifier: Apache-2.0
//
// Limits of control groups: those of a group bind all below it, so each one on the way up counts.
#include <fmt/format.h>

#include <algorithm>
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

struct Quota {
  double processors;
  std::uint64_t throttled;  // periods
  std::string file;
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
              .throttled = 0,
              .file = std::move(file)};
  const std::string stat = tree.text(directory + "/cpu.stat").value_or("");
  for (const std::string_view each : lines(stat))
    if (const auto pair = words(each); pair.size() == 2 && pair[0] == "nr_throttled")
      found.throttled = to_number(pair[1]).value_or(0);
  return found;
}

void look_at_quota(const Tree& tree, const std::string& pid, const std::string& about,
                   Findings& findings) {
  std::optional<Quota> least;
  for (const char* const controller : {"", "cpu"})
    for_each_level(group_of(tree, pid, controller), [&](const std::string& directory) {
      if (const auto quota = quota_in(tree, directory);
          quota && (!least || quota->processors < least->processors))
        least = quota;
      return false;
    });
  if (!least) return;
  const bool throttled = least->throttled > 0;
  if (!throttled && least->processors >= 2) return;
  findings.push_back(
      {throttled ? "throttled" : "processor-quota", throttled ? Severity::warning : Severity::note,
       about,
       throttled
           ? fmt::format(
                 "Its control group may use {:.2g} processors and was stopped for the rest of "
                 "a period {} times: whoever waits for it then waits for tens of "
                 "milliseconds.",
                 least->processors, least->throttled)
           : fmt::format("Its control group may use {:.2g} processors: two ends that both run use "
                         "that up, and stand still until the next period.",
                         least->processors),
       fmt::format("Raise {} to two processors or more (CPUQuota=200% of the service, `docker run "
                   "--cpus 2`), or use cpu.weight instead.",
                   least->file)});
}

std::optional<std::uint64_t> first_number(const Tree& tree, const std::string& one,
                                          const std::string& other) {
  const auto number = tree.number(one);
  return number ? number : tree.number(other);
}

// Without what the kernel can drop: copies of files.
std::optional<std::uint64_t> memory_in_use(const Tree& tree, const std::string& directory) {
  auto used =
      first_number(tree, directory + "/memory.current", directory + "/memory.usage_in_bytes");
  const std::string stat = tree.text(directory + "/memory.stat").value_or("");
  for (const std::string_view line : lines(stat)) {
    const auto pair = words(line);
    if (!used || pair.size() != 2) continue;
    if (pair[0] == "inactive_file" || pair[0] == "active_file")
      *used -= std::min(*used, to_number(pair[1]).value_or(0));
  }
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
