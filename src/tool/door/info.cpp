// SPDX-License-Identifier: Apache-2.0
//
// farcall door info: doors as door_info() knows them, and as descriptors of any process that the
// caller may look at. The latter are sockets whose names say which door they are of:
//
//   @farcall/door/<id>/<attributes>/<one of many descriptors>        all hexadecimal
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include "doctor/sockets.hpp"
#include "farcall/door.hpp"
#include "memory/to_number.hpp"
#include "tool/door/door.hpp"
#include "watch/text.hpp"

namespace farcall::tool::door {
namespace {

namespace fs = std::filesystem;
using Inode = std::uint64_t;

std::string attributes(unsigned bits) {
  static constexpr std::array<std::pair<unsigned, const char*>, 9> kNames{{
      {DOOR_UNREF, "UNREF"},
      {DOOR_UNREF_MULTI, "UNREF_MULTI"},
      {DOOR_PRIVATE, "PRIVATE"},
      {DOOR_REFUSE_DESC, "REFUSE_DESC"},
      {DOOR_NO_CANCEL, "NO_CANCEL"},
      {DOOR_DEPLETION_CB, "DEPLETION_CB"},
      {DOOR_LOCAL, "LOCAL"},
      {DOOR_REVOKED, "REVOKED"},
      {DOOR_IS_UNREF, "IS_UNREF"},
  }};
  std::string text;
  for (const auto& [bit, name] : kNames)
    if ((bits & bit) != 0) text += (text.empty() ? "" : "|") + std::string(name);
  return text.empty() ? "none" : text;
}

std::string program_of(pid_t pid) {
  return fmt::format("{}[{}]", watch::program_of(std::to_string(pid)), pid);
}

std::string limit(std::size_t value, std::size_t none) {
  return value >= none ? "unlimited" : std::to_string(value);
}

std::string describe_path(const std::string& path) {
  const Door door = Door::open(path);
  const door_info_t info = door.info();
  const std::string server = info.di_target < 0 ? "a server that has ended"
                                                : program_of(static_cast<pid_t>(info.di_target));
  constexpr std::size_t kMostDescriptors = INT32_MAX;
  return fmt::format(
      "{}: door to {}\n"
      "  id {:016x}, attributes {}\n"
      "  procedure {:#x}, cookie {:#x}\n"
      "  request: {} to {} bytes, descriptors: {}\n",
      path, server, static_cast<std::uint64_t>(info.di_uniquifier), attributes(info.di_attributes),
      door_ptr_t{info.di_proc}, door_ptr_t{info.di_data}, door.limit(DOOR_PARAM_DATA_MIN),
      limit(door.limit(DOOR_PARAM_DATA_MAX), SIZE_MAX),
      limit(door.limit(DOOR_PARAM_DESC_MAX), kMostDescriptors));
}

struct Named {
  std::uint64_t id;
  unsigned attributes;
};

// "@farcall/door/ID/ATTRIBUTES/REST"
std::optional<Named> parse_name(std::string_view name) {
  constexpr std::string_view kPrefix = "@farcall/door/";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto first = name.find('/');
  const auto second = name.find('/', first == std::string_view::npos ? first : first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const auto id = to_number<std::uint64_t>(name.substr(0, first), 16);
  const auto bits = to_number<unsigned>(name.substr(first + 1, second - first - 1), 16);
  if (!id || !bits) return std::nullopt;
  return Named{*id, *bits};
}

// The doors among the unix sockets of the network namespace that a process is in.
std::unordered_map<Inode, Named> named_sockets(pid_t pid) {
  std::unordered_map<Inode, Named> sockets;
  std::ifstream table(fmt::format("/proc/{}/net/unix", pid));
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string skipped;
    std::string name;
    Inode inode = 0;
    for (int i = 0; i < 6; ++i) words >> skipped;
    if (!(words >> inode >> name)) continue;
    if (const auto named = parse_name(name)) sockets.emplace(inode, *named);
  }
  return sockets;
}

// The sockets among the descriptors of a process. Throws where it may not be looked at.
std::map<int, Inode> sockets_of(pid_t pid) {
  std::map<int, Inode> sockets;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    std::error_code gone;
    const std::string target = fs::read_symlink(entry.path(), gone);
    constexpr std::string_view kSocket = "socket:[";
    if (gone || !target.starts_with(kSocket)) continue;
    const auto fd = to_number<int>(entry.path().filename().native());
    const auto inode = to_number<Inode>(
        std::string_view(target).substr(kSocket.size(), target.size() - kSocket.size() - 1));
    if (fd && inode) sockets.emplace(*fd, *inode);
  }
  return sockets;
}

// The socket at the other end, as the kernel's socket monitoring tells; 0 where there is none.
Inode peer_of(Inode inode) {
  static const std::unordered_map<Inode, Inode> peers = [] {
    std::unordered_map<Inode, Inode> all;
    for (const doctor::UnixSocket& each : doctor::ask_for_unix_sockets())
      all.emplace(each.number, each.peer);
    return all;
  }();
  const auto found = peers.find(inode);
  return found != peers.end() ? found->second : 0;
}

// Who holds which socket, as far as the caller may look.
const std::unordered_map<Inode, pid_t>& holders() {
  static const std::unordered_map<Inode, pid_t> all = [] {
    std::unordered_map<Inode, pid_t> holders;
    std::vector<pid_t> processes;
    for (const auto& entry : fs::directory_iterator("/proc"))
      if (const auto pid = to_number<pid_t>(entry.path().filename().native()))
        processes.push_back(*pid);
    std::sort(processes.begin(), processes.end());  // parents before their children
    for (const pid_t pid : processes) {
      try {
        for (const auto& [fd, inode] : sockets_of(pid)) holders.emplace(inode, pid);
      } catch (const fs::filesystem_error&) {
        continue;  // somebody else's, or gone
      }
    }
    return holders;
  }();
  return all;
}

std::string server_of(Inode socket) {
  const Inode peer = peer_of(socket);
  if (peer == 0) return "a server that has ended";
  const auto found = holders().find(peer);
  return found != holders().end() ? program_of(found->second) : "a server of another user";
}

std::string describe_process(pid_t pid) {
  std::map<int, Inode> sockets;
  try {
    sockets = sockets_of(pid);
  } catch (const fs::filesystem_error& error) {
    const int code = error.code().value();
    const std::string why =
        code == ENOENT
            ? watch::unless_no_proc(fmt::format("there is none; a path? write ./{}", pid))
        : code == EACCES ? "it belongs to somebody else; ask root"
                         : "";
    throw DoorError(code, fmt::format("look at process {}{}", pid,
                                      why.empty() ? "" : fmt::format(" ({})", why)));
  }
  const auto doors = named_sockets(pid);
  std::string text = fmt::format("{}:\n", program_of(pid));
  for (const auto& [fd, inode] : sockets) {
    const auto door = doors.find(inode);
    if (door == doors.end()) continue;
    text += fmt::format("{:4}: door {:016x} to {}, attributes {}\n", fd, door->second.id,
                        server_of(inode), attributes(door->second.attributes));
  }
  return text;
}

}  // namespace

std::string describe(const std::string& path_or_pid) {
  const auto pid = to_number<pid_t>(path_or_pid);
  return pid ? describe_process(*pid) : describe_path(path_or_pid);
}

}  // namespace farcall::tool::door
