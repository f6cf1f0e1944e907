// SPDX-License-Identifier: Apache-2.0
#include "doctor/connections.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "doctor/reasons.hpp"

namespace farcall::doctor {
namespace {

constexpr unsigned kEstablished = 1;
constexpr unsigned kListening = 10;
constexpr std::size_t kMostNamespaces = 64;

// A socket of the process, and the one at its other end.
struct Pair {
  Protocol protocol;
  Address local;
  Address remote;
  std::string endpoint;
  int type = SOCK_STREAM;
  std::uint64_t number = 0;
  std::uint64_t peer = 0;  // 0: not in this namespace
};

using Ends = std::map<std::tuple<Transport, Address, Address>, std::uint64_t>;

class Finder {
 public:
  explicit Finder(const Search& search)
      : search_(search), own_(search.process), holders_(holders_of_sockets(search.tree)) {}

  std::vector<Connection> find() {
    find_internet();
    find_unix();
    share_out_memory();
    std::vector<Connection> all;
    for (auto& [key, connection] : groups_)
      if (connection.count != 0) all.push_back(std::move(connection));
    return all;
  }

 private:
  // Processes are read once.
  const Process* process(pid_t pid) {
    if (pid == own_.pid) return &own_;
    auto [at, fresh] = processes_.try_emplace(pid);
    if (fresh)
      if (auto read = read_process(search_.tree, pid))
        at->second = std::make_unique<Process>(std::move(*read));
    return at->second.get();
  }

  void find_internet() {
    const auto sockets = read_internet_sockets(search_.tree, own_.pid);
    Ends ends;
    std::set<std::uint16_t> served;
    for (const InternetSocket& socket : sockets) {
      if (socket.transport == Transport::tcp && socket.state == kListening)
        served.insert(socket.local.port);
      else
        ends[{socket.transport, socket.local, socket.remote}] = socket.number;
    }
    for (const InternetSocket& socket : sockets) {
      if (socket.state != kEstablished || !own_.sockets.contains(socket.number)) continue;
      const bool tcp = socket.transport == Transport::tcp;
      if (!tcp && socket.remote.port == 0) continue;
      const bool serves =
          tcp && served.contains(socket.local.port) && !served.contains(socket.remote.port);
      const std::uint64_t connected = connected_peer(ends, socket);
      // Of a connection with itself a process has both ends.
      if (connected < socket.number && own_.sockets.contains(connected)) continue;
      judge_pair({.protocol = tcp ? Protocol::tcp : Protocol::udp,
                  .local = socket.local,
                  .remote = socket.remote,
                  .endpoint = to_text(serves ? socket.local : socket.remote),
                  .number = socket.number,
                  .peer = connected != 0 || tcp ? connected : bound_peer(sockets, socket)});
    }
  }

  static std::uint64_t connected_peer(const Ends& ends, const InternetSocket& socket) {
    const auto found = ends.find({socket.transport, socket.remote, socket.local});
    return found == ends.end() ? 0 : found->second;
  }

  // A socket for datagrams that is bound there, and connected to none.
  static std::uint64_t bound_peer(const std::vector<InternetSocket>& sockets,
                                  const InternetSocket& socket) {
    std::uint64_t bound = 0;
    for (const InternetSocket& other : sockets) {
      if (other.transport != Transport::udp || other.local.port != socket.remote.port) continue;
      if (other.local.bytes != socket.remote.bytes && !other.local.is_any()) continue;
      if (other.remote.port == 0) bound = other.number;
    }
    return bound;
  }

  void find_unix() {
    std::map<std::uint64_t, const UnixSocket*> by_number;
    for (const UnixSocket& socket : search_.unix_sockets) by_number[socket.number] = &socket;
    for (const UnixSocket& socket : search_.unix_sockets) {
      if (socket.peer == 0 || !own_.sockets.contains(socket.number)) continue;
      const auto peer = by_number.find(socket.peer);
      std::string name = socket.name;
      if (name.empty() && peer != by_number.end()) name = peer->second->name;
      judge_pair({.protocol = Protocol::unix_socket,
                  .local = {},
                  .remote = {},
                  .endpoint = name.empty() ? "(a pair)" : name,
                  .type = socket.type,
                  .number = socket.number,
                  .peer = socket.peer});
    }
  }

  [[nodiscard]] std::vector<pid_t> holders(std::uint64_t number) const {
    const auto found = holders_.find(number);
    return found == holders_.end() ? std::vector<pid_t>() : found->second;
  }

  void judge_pair(const Pair& pair) {
    const std::vector<pid_t> peers = holders(pair.peer);
    // A pair that one process keeps for itself is no conversation.
    if (pair.protocol == Protocol::unix_socket && peers.size() == 1 && peers.front() == own_.pid)
      return;
    const Process* const peer = peers.empty() ? nullptr : process(peers.front());
    std::optional<Told> told = what_is_told(own_, pair.number);
    // Who gave a connection back knows why, which the other end learns late, or never.
    if (told && peer != nullptr && has_library(*peer) && !tells_why(*told))
      if (auto there = what_is_told(*peer, pair.peer); there && tells_why(*there))
        told = std::move(there);
    if (told && told->accelerated) {
      ++add(pair, peer, {}).accelerated;
      return;
    }
    std::string why = reason_of(pair, peers, peer);
    if (why.empty() && told) why = told->reason.empty() ? "undecided" : told->reason;
    const bool decided = !why.empty();
    Connection& group = add(pair, peer, why);
    if (!decided) ++undecided_[&group];
  }

  static bool has_library(const Process& process) {
    return process.library == Library::loaded || process.library == Library::replaced;
  }

  // Of its own, not only that the other end does not go along.
  static bool tells_why(const Told& told) {
    return !told.accelerated && !told.reason.empty() && told.reason != "undecided" &&
           told.reason != "peer-silent" && told.reason != "peer-gave-back";
  }

  // Of whichever of its descriptors.
  [[nodiscard]] std::optional<Told> what_is_told(const Process& process,
                                                 std::uint64_t number) const {
    if (!search_.told) return std::nullopt;
    const auto [from, to] = process.sockets.equal_range(number);
    for (auto at = from; at != to; ++at)
      if (auto told = search_.told(process.pid, at->second)) return told;
    return std::nullopt;
  }

  // The reason, or nothing: then it may be accelerated, and share_out_memory() says whether it is.
  std::string reason_of(const Pair& pair, const std::vector<pid_t>& peers, const Process* peer) {
    if (pair.peer == 0) return in_other_namespace(pair) ? "network-namespaces" : "not-local";
    if (pair.protocol == Protocol::unix_socket && pair.type == SOCK_DGRAM) return "unix-datagrams";
    if (own_.library == Library::absent) return "library-not-loaded";
    if (peer == nullptr || peer->library == Library::unknown) return "peer-unseen";
    if (peer->library == Library::absent) return "peer-without-library";
    const End end{.protocol = pair.protocol,
                  .local = pair.local,
                  .remote = pair.remote,
                  .name = pair.endpoint == "(a pair)" ? std::string_view() : pair.endpoint};
    if (!search_.wanted(own_, end) || !search_.wanted(*peer, end)) return "switched-off";
    if (!own_.network.empty() && !peer->network.empty() && own_.network != peer->network)
      return "network-namespaces";
    if (!search_.may_share(own_, *peer) || !search_.may_share(*peer, own_)) return "other-user";
    if (own_.uring || peer->uring) return "io-uring";
    if (peer->state == 'T' || peer->state == 't') return "peer-stopped";
    if (peers.size() > 1 || holders(pair.number).size() > 1) return "held-by-several";
    return {};
  }

  // Whether a process in another namespace has the other end.
  bool in_other_namespace(const Pair& pair) {
    if (pair.protocol != Protocol::tcp || own_.network.empty()) return false;
    if (!other_ends_) {
      other_ends_.emplace();
      std::set<std::string> seen{own_.network};
      for (const pid_t pid : all_processes(search_.tree)) {
        const std::string network = search_.tree.link(fmt::format("/proc/{}/ns/net", pid));
        if (network.empty() || !seen.insert(network).second) continue;
        if (seen.size() > kMostNamespaces) break;
        for (const InternetSocket& socket : read_internet_sockets(search_.tree, pid))
          (*other_ends_)[{socket.transport, socket.local, socket.remote}] = socket.number;
      }
    }
    return other_ends_->contains({Transport::tcp, pair.remote, pair.local});
  }

  Connection& add(const Pair& pair, const Process* peer, const std::string& why) {
    const pid_t pid = peer == nullptr ? 0 : peer->pid;
    Connection& group = groups_[{pair.protocol, pair.endpoint, pid, why}];
    group.protocol = pair.protocol;
    group.endpoint = pair.endpoint;
    group.peer = peer == nullptr ? "" : describe(*peer);
    group.peer_pid = pid;
    group.peer_has_library = peer != nullptr && has_library(*peer);
    group.reason = why;
    ++group.count;
    return group;
  }

  static const std::map<std::uint64_t, int>& memory(const Process& process, Protocol protocol) {
    return protocol == Protocol::tcp   ? process.tcp_memory
           : protocol == Protocol::udp ? process.udp_memory
                                       : process.unix_memory;
  }

  // Each accelerated connection has a memory of its own that both ends have mapped.
  std::size_t shared_with(const Process& peer, Protocol protocol) const {
    const auto& mine = memory(own_, protocol);
    const auto& theirs = memory(peer, protocol);
    return static_cast<std::size_t>(std::ranges::count_if(mine, [&](const auto& each) {
      return &peer == &own_ ? each.second > 1 : theirs.contains(each.first);
    }));
  }

  // Where the process tells nothing: how many of the connections with another one are accelerated
  // is known, not which.
  void share_out_memory() {
    std::map<std::pair<Protocol, pid_t>, std::size_t> left;
    for (auto& [key, group] : groups_) {
      const auto open = undecided_.find(&group);
      if (open == undecided_.end()) continue;
      const Process* const peer = process(group.peer_pid);
      const auto [at, fresh] = left.try_emplace({group.protocol, group.peer_pid}, 0);
      if (fresh && peer != nullptr) at->second = shared_with(*peer, group.protocol);
      const bool one_for_all = group.protocol == Protocol::udp && at->second != 0;
      const std::size_t more = one_for_all ? open->second : std::min(open->second, at->second);
      at->second -= std::min(at->second, more);
      group.accelerated += more;
      if (group.accelerated < group.count) group.reason = "undecided";
    }
  }

  using Key = std::tuple<Protocol, std::string, pid_t, std::string>;

  const Search& search_;
  const Process& own_;
  const Holders holders_;
  std::map<pid_t, std::unique_ptr<Process>> processes_;
  std::optional<Ends> other_ends_;
  std::map<Key, Connection> groups_;
  std::map<const Connection*, std::size_t> undecided_;  // so many of a group
};

// Where programs report to, or ask, in passing.
bool is_of_the_system(const Connection& connection) {
  if (connection.protocol != Protocol::unix_socket) return false;
  for (const char* const begin :
       {"/run/systemd/", "/run/dbus/", "/var/run/dbus/", "/run/udev/", "/dev/log", "/run/user/",
        "/run/nscd/", "/var/run/nscd/", "@/tmp/.X11-unix/", "/tmp/.X11-unix/"})
    if (connection.endpoint.starts_with(begin)) return true;
  return false;
}

// What it most often is where the program was started without the library is not so here.
constexpr Reason kSilentWithLibrary{
    "peer-silent", Severity::warning,
    "The other end has the library, but never answered: it goes round it by system calls of its "
    "own, or had left the connection to the kernel before.",
    "Look at that process by `farcall doctor`, too; if it uses its sockets by system calls of its "
    "own, nothing can be done from outside."};

std::string subject(const Connection& connection) {
  std::string text = fmt::format("{} {}", to_string(connection.protocol), connection.endpoint);
  if (!connection.peer.empty()) text += " with " + connection.peer;
  const std::size_t others = connection.count - connection.accelerated;
  if (connection.count > 1) text += fmt::format(", {} of {} connections", others, connection.count);
  return text;
}

}  // namespace

const char* to_string(Protocol protocol) noexcept {
  switch (protocol) {
    case Protocol::tcp: return "tcp";
    case Protocol::udp: return "udp";
    case Protocol::unix_socket: return "unix";
  }
  return "unknown";
}

std::vector<Connection> find_connections(const Search& search) { return Finder(search).find(); }

void judge(const Process& process, const std::vector<Connection>& connections,
           const std::string& obstacle, Findings& findings) {
  std::size_t plain = 0;
  for (const Connection& connection : connections) {
    if (connection.reason.empty()) continue;
    if (connection.reason == "library-not-loaded") {
      if (!is_of_the_system(connection)) plain += connection.count;
      continue;
    }
    const bool refused = connection.reason == "peer-silent" && connection.peer_has_library;
    const Reason& why = refused ? kSilentWithLibrary : reason(connection.reason);
    const bool passing = why.severity == Severity::warning && is_of_the_system(connection);
    findings.push_back({why.id, passing ? Severity::note : why.severity, subject(connection),
                        why.cause, why.cure});
  }
  if (process.library != Library::absent) return;
  const Reason& why = reason("library-not-loaded");
  const bool preloads =
      process.variable("LD_PRELOAD").find("libfarcall-preload") != std::string::npos;
  std::string cause = why.cause;
  if (!obstacle.empty())
    cause = fmt::format("The preload library cannot be loaded into this program: {}.", obstacle);
  else if (preloads)
    cause =
        "LD_PRELOAD names the preload library, but it is not loaded: its file was not there, or "
        "could not be read, when the program began.";
  if (plain != 0)
    cause += fmt::format(" {} of its connections within this machine {} through the kernel.", plain,
                         plain == 1 ? "goes" : "go");
  std::string cure = why.cure;
  if (!obstacle.empty())
    cure =
        "Build or install it as a dynamic program of this machine's C library, without setuid or "
        "capabilities; else use doors or channels between your own programs.";
  else if (preloads)
    cure =
        "Look for what the dynamic linker said on standard error; in a container the library must "
        "be there, too.";
  findings.push_back(
      {why.id, plain != 0 ? Severity::fault : Severity::note, describe(process), cause, cure});
}

}  // namespace farcall::doctor
