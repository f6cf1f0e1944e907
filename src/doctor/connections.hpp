// SPDX-License-Identifier: Apache-2.0
//
// The connections that a process has with others on this machine, and why each is not accelerated,
// as far as that shows from outside: whether both ends have the library, whose they are, where they
// are, and how many pieces of memory they share for connections.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/process.hpp"
#include "doctor/sockets.hpp"

namespace farcall::doctor {

enum class Protocol : std::uint8_t { tcp, udp, unix_socket };
const char* to_string(Protocol protocol) noexcept;

// Those that are alike are one.
struct Connection {
  Protocol protocol;
  std::string endpoint;  // the server's address or name
  std::string peer;      // "redis-server (process 77)"; or empty: not known
  pid_t peer_pid = 0;
  std::size_t count = 0;
  std::size_t accelerated = 0;
  std::string reason;  // of those that are not, see reasons.hpp; empty: all are
  bool peer_has_library = false;
};

// One end, for whoever knows the settings.
struct End {
  Protocol protocol;
  Address local;
  Address remote;
  std::string_view name;  // of a unix socket's server
};

// What a process itself tells of one of its sockets.
struct Told {
  bool accelerated = false;
  std::string reason;  // why not, see reasons.hpp; empty where that is not decided
};

struct Search {
  const Tree& tree;
  const Process& process;
  std::vector<UnixSocket> unix_sockets;  // of the process's namespace
  // Whether a process's environment wants such a connection accelerated.
  std::function<bool(const Process&, const End&)> wanted;
  // Whether it shares memory with the other one.
  std::function<bool(const Process&, const Process&)> may_share;
  // What a process tells of its socket at that descriptor; may be empty.
  std::function<std::optional<Told>(pid_t, int)> told;
};

std::vector<Connection> find_connections(const Search& search);

// `obstacle` says why the library cannot be loaded into the program, or nothing.
void judge(const Process& process, const std::vector<Connection>& connections,
           const std::string& obstacle, Findings& findings);

}  // namespace farcall::doctor
