// SPDX-License-Identifier: Apache-2.0
#include "watch/process.hpp"

#include <dirent.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>

#include "farcall/error.hpp"
#include "memory/to_number.hpp"
#include "watch/maps.hpp"
#include "watch/memory.hpp"
#include "watch/status.hpp"

namespace farcall::watch {
namespace {

using observe::Counters;
using observe::Header;
using observe::Identity;
using observe::Table;

bool read_at(const Owner& of, std::uint64_t from, void* into, std::size_t size) {
  const iovec there{.iov_base = reinterpret_cast<void*>(from), .iov_len = size};
  return read_memory(of, {&there, 1}, into, size);
}

// As much of a table as is in use, as it was at some moment.
struct Copy {
  std::vector<Identity> identities;
  std::vector<Identity> again;  // behind the counters: what has not changed meanwhile fits them
  std::vector<Counters> counters;
  observe::Ended ended;
};

std::size_t entries_in_use(const Header& header) {
  for (std::size_t word = header.used.size(); word-- > 0;)
    if (header.used[word] != 0)
      return word * 64 + 64 - static_cast<std::size_t>(__builtin_clzll(header.used[word]));
  return 0;
}

bool is_ours(const Header& header) {
  return header.magic == Header::kMagic && header.version == observe::kVersion &&
         header.identity_bytes == sizeof(Identity) && header.counters_bytes == sizeof(Counters) &&
         header.times_bytes == sizeof(observe::Times) && header.entries == observe::kEntries;
}

bool read_table(const Owner& of, std::uint64_t table, Copy& into) {
  Header header;
  if (!read_at(of, table, &header, sizeof header) || !is_ours(header)) return false;
  const std::size_t entries = std::max<std::size_t>(entries_in_use(header), 1);
  into.identities.resize(entries);
  into.again.resize(entries);
  into.counters.resize(entries);
  return read_at(of, table, into.identities.data(), entries * sizeof(Identity)) &&
         read_at(of, table + offsetof(Table, counters), into.counters.data(),
                 entries * sizeof(Counters)) &&
         read_at(of, table + offsetof(Table, times), &into.ended, sizeof into.ended) &&
         read_at(of, table, into.again.data(), entries * sizeof(Identity));
}

bool has_moved(const Counters& counters) {
  const auto moved = [](const observe::Half& half) {
    return (half.messages | half.bytes | half.kernel_messages | half.kernel_bytes | half.sleeps |
            half.spun_ns | half.waiting_since) != 0;
  };
  return moved(counters.sent) || moved(counters.received);
}

template <class Enum>
Enum checked(std::uint8_t value) {
  return value < static_cast<std::uint8_t>(Enum::count_) ? static_cast<Enum>(value) : Enum{};
}

Session session_of(const Maps& maps, std::uint64_t inode) {
  const auto found =
      std::lower_bound(maps.files.begin(), maps.files.end(), inode,
                       [](const Session& file, std::uint64_t i) { return file.inode < i; });
  return inode != 0 && found != maps.files.end() && found->inode == inode ? *found : Session{};
}

End end_of(const Identity& identity, const Counters& counters) {
  const std::size_t name = std::min<std::size_t>(identity.name_bytes, observe::kLongestName);
  return {.generation = identity.generation,
          .kind = checked<observe::Kind>(identity.kind),
          .role = checked<observe::Role>(identity.role),
          .carrier = checked<observe::Carrier>(identity.carrier),
          .reason = identity.reason,
          .peer = std::max(identity.peer, 0),
          .session = {},
          .opened = identity.opened,
          .fd = identity.fd,
          .local = identity.local,
          .remote = identity.remote,
          .name = std::string(identity.name.data(), name),
          .counters = counters};
}

// Whether the descriptor means that socket.
bool is_socket(pid_t pid, int fd, std::uint64_t inode) {
  char path[64];
  char expected[64];
  char link[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
  std::snprintf(expected, sizeof expected, "socket:[%" PRIu64 "]", inode);
  const ssize_t size = ::readlink(path, link, sizeof link - 1);
  if (size < 0) return false;
  link[size] = '\0';
  return std::strcmp(link, expected) == 0;
}

// What a child goes on with; sessions of calls it makes anew.
bool is_inherited(observe::Kind kind) {
  return kind != observe::Kind::call && kind != observe::Kind::door &&
         kind != observe::Kind::channel;
}

void add_way(Passed& to, const observe::Ended::Way& passed, const observe::Ended::Way* kernel) {
  to.messages += passed.messages;
  to.bytes += passed.bytes;
  if (kernel == nullptr) return;
  to.kernel_messages += kernel->messages;
  to.kernel_bytes += kernel->bytes;
}

Closed& closed_of(observe::Kind kind, std::vector<Closed>& all) {
  auto at = std::ranges::lower_bound(all, kind, {}, &Closed::kind);
  if (at == all.end() || at->kind != kind) {
    at = all.insert(at, Closed{});
    at->kind = kind;
  }
  return *at;
}

void take_closed(const observe::Ended& ended, std::vector<Closed>& into) {
  for (std::size_t place = 0; place < ended.ends.size(); ++place) {
    if (ended.ends[place] == 0) continue;
    Closed& closed = closed_of(static_cast<observe::Kind>(place + 1), into);
    closed.ends += ended.ends[place];
    const auto* const kernel = place < ended.kernel.size() ? &ended.kernel[place] : nullptr;
    add_way(closed.sent, ended.passed[place].sent, kernel != nullptr ? &kernel->sent : nullptr);
    add_way(closed.received, ended.passed[place].received,
            kernel != nullptr ? &kernel->received : nullptr);
  }
}

// One that its process has not noticed yet to be closed.
void take_closed(const End& end, std::vector<Closed>& into) {
  Closed& closed = closed_of(end.kind, into);
  ++closed.ends;
  const auto add = [](Passed& to, const observe::Half& half) {
    const observe::Ended::Way kernel{half.kernel_messages, half.kernel_bytes};
    add_way(to, {half.messages, half.bytes}, &kernel);
  };
  add(closed.sent, end.counters.sent);
  add(closed.received, end.counters.received);
}

void take_ends(const Copy& copy, std::uint64_t table, const Status& status, const Maps& maps,
               Process& into) {
  const auto& owner = reinterpret_cast<const observe::Process&>(copy.counters[0]);
  // A table of another process: this one runs on that one's memory for a moment (vfork).
  if (owner.pid != 0 && owner.pid != status.own_pid) return;
  into.not_listed += owner.not_listed;
  into.mark = reinterpret_cast<const Header&>(copy.identities[0]).spare;
  take_closed(copy.ended, into.closed);
  into.tables.push_back({.address = table, .process = table + offsetof(Table, counters)});
  for (std::size_t i = 1; i < copy.identities.size(); ++i) {
    const Identity& identity = copy.identities[i];
    if ((identity.generation & 1) != 0 || identity.generation != copy.again[i].generation) continue;
    End end = end_of(identity, copy.counters[i]);
    if (end.kind == observe::Kind::none) continue;
    end.inherited = identity.owner != status.own_pid;
    if (end.inherited && !(is_inherited(end.kind) && has_moved(end.counters))) continue;
    end.table = table;
    end.index = static_cast<std::uint32_t>(i);
    end.session = session_of(maps, identity.session);
    // What stays with the kernel is closed without notice.
    if (end.carrier == observe::Carrier::kernel && !end.session &&
        !is_socket(into.pid, end.fd, identity.session)) {
      take_closed(end, into.closed);
      continue;
    }
    if (!status.same_pids) end.peer = 0;
    into.ends.push_back(std::move(end));
  }
}

Seen refusal(int error) {
  if (error == ETIMEDOUT || error == EAGAIN) return Seen::silent;
  return error == EPERM || error == EACCES ? Seen::forbidden : Seen::gone;
}

Seen look_at_memory(const Owner& of, const Status& status, std::size_t most, Process& into) {
  Maps maps;
  if (const int error = read_maps(of, maps); error != 0) return refusal(error);
  Seen seen = Seen::no_tables;
  Copy copy;
  for (const std::uint64_t table : maps.tables) {
    if (into.ends.size() >= most) {
      ++into.not_listed;  // at least
      break;
    }
    errno = 0;
    if (!read_table(of, table, copy)) {
      if (errno == EPERM || errno == ESRCH || errno == ETIMEDOUT || errno == EAGAIN)
        return refusal(errno);
      continue;
    }
    seen = Seen::yes;
    take_ends(copy, table, status, maps, into);
  }
  return seen;
}

Seen examine(pid_t pid, const Status& status, std::size_t most, Process& into) {
  into = {.pid = pid,
          .user = status.user,
          .group = status.group,
          .command = status.command,
          .started = status.started,
          .parent = status.parent,
          .same_pids = status.same_pids,
          .mark = 0,
          .ends = {},
          .tables = {},
          .closed = {},
          .not_listed = 0};
  return look_at_memory(owner_of(into), status, most, into);
}

}  // namespace

bool has_table(const Owner& of, std::uint64_t address) {
  Header header;
  return read_at(of, address, &header, sizeof header) && is_ours(header);
}

Seen look(pid_t pid, Process& into, std::size_t most) {
  Status status;
  return read_status(pid, status) ? examine(pid, status, most, into) : Seen::gone;
}

std::vector<Process> Everybody::look(Whose whose) {
  std::vector<Process> found;
  std::vector<std::pair<pid_t, Known>> plain;
  std::map<uid_t, std::size_t> taken;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), ::closedir);
  if (proc == nullptr) throw_errno("/proc");
  bool any = false;
  while (const dirent* entry = ::readdir(proc.get())) {
    const pid_t number = to_number<pid_t>(entry->d_name).value_or(0);
    if (number <= 0) continue;
    any = true;
    const auto known = std::lower_bound(plain_.begin(), plain_.end(), number,
                                        [](const auto& one, pid_t p) { return one.first < p; });
    const bool is_known = known != plain_.end() && known->first == number;
    if (is_known && known->second.rounds_to_skip > 0) {
      plain.emplace_back(number, known->second);
      --plain.back().second.rounds_to_skip;
      continue;
    }
    Process process;
    Status status;
    errno = 0;
    if (!read_status(number, status)) {
      if (errno == EMFILE || errno == ENFILE) throw_errno("/proc");
      continue;
    }
    if (whose == Whose::own && status.user != ::geteuid()) continue;
    std::size_t& of_user = taken[status.user];
    const Seen seen = examine(number, status, kMostEnds - std::min(of_user, kMostEnds), process);
    of_user += process.ends.size();
    if (seen == Seen::yes) {
      found.push_back(std::move(process));
    } else if (seen != Seen::gone) {
      const bool same = is_known && known->second.started == process.started;
      const unsigned vain = same ? std::min(known->second.rounds_in_vain + 1, most_left_out_) : 0;
      plain.push_back({number, {process.started, vain, vain}});
    }
  }
  if (!any) throw SystemError(ENOENT, "/proc: there are no processes in it");
  // Who is named as the other end has likely just begun.
  std::set<pid_t> peers;
  for (const Process& process : found)
    for (const End& end : process.ends) peers.insert(end.peer);
  for (auto& [pid, known] : plain)
    if (peers.contains(pid)) known.rounds_to_skip = 0;
  std::sort(plain.begin(), plain.end(),
            [](const auto& one, const auto& other) { return one.first < other.first; });
  plain_ = std::move(plain);
  return found;
}

bool read_times(const Process& process, const End& end, observe::Times& into) {
  Status status;
  if (!read_status(process.pid, status) || status.user != process.user) return false;
  return read_at(owner_of(process), end.table + offsetof(Table, times) + end.index * sizeof into,
                 &into, sizeof into);
}

}  // namespace farcall::watch
