// SPDX-License-Identifier: Apache-2.0
#include "watch/status.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace farcall::watch {
namespace {

std::string read_file(pid_t pid, const char* name) {
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
  const int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::array<char, 8192> bytes;
  std::string text;
  for (;;) {
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got <= 0 || text.size() > 65'536) break;
    text.append(bytes.data(), static_cast<std::size_t>(got));
  }
  ::close(fd);
  return text;
}

// What follows "Name:\t" on its line. The first line is the command's, whose own lines' ends the
// kernel escapes, so it cannot make others up.
std::string_view field(std::string_view text, std::string_view name) {
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view line = text.substr(at, end - at);
    if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ':') {
      const std::size_t value = line.find_first_not_of(" \t", name.size() + 1);
      return value == std::string_view::npos ? std::string_view{} : line.substr(value);
    }
    at = end + 1;
  }
  return {};
}

bool read_ids(std::string_view text, unsigned& effective) {
  unsigned ids[4] = {};
  if (std::sscanf(std::string(text).c_str(), "%u %u %u %u", &ids[0], &ids[1], &ids[2], &ids[3]) !=
      4)
    return false;
  effective = ids[1];
  return ids[0] == ids[1] && ids[1] == ids[2];
}

std::uint64_t start_of(pid_t pid) {
  const std::string text = read_file(pid, "stat");
  // The command is in parentheses, and may hold any.
  const std::size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  const char* at = text.c_str() + end + 1;
  for (int field = 2; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) return 0;
    ++at;
  }
  return std::strtoull(at, nullptr, 10);
}

// A zombie, for which its parent has not waited yet. One whose first thread alone has ended goes
// on.
bool has_ended(std::string_view status) {
  const std::string_view state = field(status, "State");
  if (!state.starts_with('Z') && !state.starts_with('X')) return false;
  return std::atoi(std::string(field(status, "Threads")).c_str()) <= 1;
}

}  // namespace

bool read_status(pid_t pid, Status& into) {
  const std::string text = read_file(pid, "status");
  if (text.empty() || has_ended(text)) return false;
  into.command = field(text, "Name");
  const bool one_user = read_ids(field(text, "Uid"), into.user);
  const bool one_group = read_ids(field(text, "Gid"), into.group);
  into.one_identity = one_user && one_group;
  const std::string pids(field(text, "NSpid"));
  const std::size_t last = pids.find_last_of(" \t");
  into.same_pids = last == std::string::npos;
  into.own_pid = pids.empty() ? pid : std::atoi(pids.c_str() + (into.same_pids ? 0 : last + 1));
  into.started = start_of(pid);
  into.parent = std::atoi(std::string(field(text, "PPid")).c_str());
  return true;
}

}  // namespace farcall::watch
