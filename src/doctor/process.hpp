// SPDX-License-Identifier: Apache-2.0
//
// A process as /proc shows it to whoever may look: what is loaded into it, where it may run, which
// sockets it has, and which memory it shares for connections.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "doctor/finding.hpp"
#include "doctor/tree.hpp"

namespace farcall::doctor {

enum class Library : std::uint8_t {
  unknown,  // the process belongs to somebody else
  absent,
  loaded,
  replaced,  // loaded, and since then its file was replaced or removed
};

struct Process {
  pid_t pid = 0;
  std::string name;  // as it calls itself: nothing to rely on, or to send to a terminal
  uid_t user = 0;    // the effective one
  pid_t parent = 0;
  pid_t tracer = 0;
  char state = '?';
  int nice = 0;
  int policy = 0;                    // SCHED_OTHER and so on
  int seccomp = 0;                   // 2: a filter
  std::vector<unsigned> processors;  // on which it may run
  std::string network;               // its namespace; empty where that is not told
  Library library = Library::unknown;
  std::vector<std::string> environment;  // NAME=VALUE, from when it was executed
  bool environment_known = false;
  // Numbers of the memory files that it has mapped, and how often: one for each connection.
  std::map<std::uint64_t, int> tcp_memory;
  std::map<std::uint64_t, int> unix_memory;
  std::map<std::uint64_t, int> udp_memory;
  std::multimap<std::uint64_t, int> sockets;  // by their numbers: descriptors
  std::size_t descriptors = 0;
  bool uring = false;        // it has set up an io_uring
  bool more_rights = false;  // than who started it (AT_SECURE): no library was preloaded

  [[nodiscard]] std::string variable(std::string_view variable_name) const;  // or empty
};

// Nothing where there is no such process.
std::optional<Process> read_process(const Tree& tree, pid_t pid);

// "redis-server (process 77)"
std::string describe(const Process& process);

// What is wrong with it as a whole, whoever it talks to. Of connections see connections.hpp.
void examine_process(const Tree& tree, const Process& process, Findings& findings);

// All processes that are there; and of all sockets whose descriptors may be seen, who has them.
std::vector<pid_t> all_processes(const Tree& tree);
using Holders = std::map<std::uint64_t, std::vector<pid_t>>;
Holders holders_of_sockets(const Tree& tree);

}  // namespace farcall::doctor
