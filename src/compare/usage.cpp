// SPDX-License-Identifier: Apache-2.0
//
// What the kernel tells of other processes of a slot.
#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "compare/sides.hpp"

namespace farcall::compare {
namespace {

// The numbers behind a word at the beginning of a line, added up.
std::int64_t sum_of(const std::string& path, std::initializer_list<std::string_view> words) {
  std::ifstream file(path);
  std::int64_t sum = 0;
  for (std::string line; std::getline(file, line);)
    for (const std::string_view word : words)
      if (line.starts_with(word)) sum += std::strtoll(line.c_str() + word.size(), nullptr, 10);
  return sum;
}

}  // namespace

Usage usage_of(pid_t process) {
  clockid_t clock{};
  timespec cpu{};
  if (const int error = ::clock_getcpuclockid(process, &clock); error != 0)
    throw SystemError(error, "look at the processor time of a server");
  if (::clock_gettime(clock, &cpu) != 0) throw_errno("look at the processor time of a server");
  Usage usage{.cpu_ns = cpu.tv_sec * 1'000'000'000 + cpu.tv_nsec};
  std::error_code gone;  // a thread may end meanwhile
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process), gone))
    usage.switches +=
        sum_of(task.path() / "status", {"voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"});
  return usage;
}

bool is_asleep(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  // "42 (a name) S 1 ...": a name may have brackets in it.
  const std::size_t end = line.rfind(") ");
  return end != std::string::npos && line.substr(end + 2, 1) == "S";
}

std::int64_t memory_of(pid_t process) {
  constexpr std::int64_t kUnit = 1024;
  return kUnit * sum_of(fmt::format("/proc/{}/smaps_rollup", process), {"Pss:"});
}

std::int64_t descriptors_of(pid_t process) {
  std::error_code gone;
  const std::filesystem::directory_iterator all(fmt::format("/proc/{}/fd", process), gone);
  return std::distance(begin(all), end(all));
}

std::uint64_t raise_descriptor_limit(std::uint64_t needed) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno("getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno("setrlimit");
  if (limit.rlim_max < needed)
    throw SystemError(
        EMFILE, fmt::format("a process may have {} descriptors here, and this needs {}; raise the "
                            "hard limit (ulimit -Hn) or ask for fewer idle connections",
                            limit.rlim_max, needed));
  return limit.rlim_max;
}

}  // namespace farcall::compare
