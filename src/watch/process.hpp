// SPDX-License-Identifier: Apache-2.0
//
// What a process tells of its traffic (farcall/observe.hpp), read from outside.
//
//  - Nobody is asked, stopped or woken, and nothing is written (lease.hpp does).
//  - What is read is checked: numbers are within bounds, names may hold any byte (text.hpp), and a
//    process can only lie about itself. `session` is what the kernel says that the process maps, so
//    who has the same session does share that memory with it. `peer` is a claim.
//  - Root looks with the rights of whom it looks at, and is not held up (memory.hpp).
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "farcall/observe.hpp"
#include "watch/memory.hpp"

namespace farcall::watch {

// Memory that several processes map; 0, 0 is none.
struct Session {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  auto operator<=>(const Session&) const = default;
  explicit operator bool() const noexcept { return inode != 0; }
};

// One end of a process. The same end is at the same place with the same generation.
struct End {
  std::uint64_t table = 0;  // address
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  observe::Kind kind{};
  observe::Role role{};
  observe::Carrier carrier{};
  std::uint8_t reason = 0;
  bool inherited = false;  // opened by a process that this one was forked from
  pid_t peer = 0;          // as this process says; 0: unknown, or of another pid namespace
  Session session;
  std::int64_t opened = 0;  // CLOCK_MONOTONIC, ns
  std::int32_t fd = -1;
  observe::Address local{};
  observe::Address remote{};
  std::string name;  // any bytes
  observe::Counters counters{};
};

// One table of a process. What it says of itself as a whole stands at `process`.
struct TableAt {
  std::uint64_t address = 0;
  std::uint64_t process = 0;
};

// One way; those of the kernel are not among the others.
struct Passed {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t kernel_messages = 0;
  std::uint64_t kernel_bytes = 0;
};

// What has passed at the ends of one kind that a process has closed.
struct Closed {
  observe::Kind kind{};
  std::uint64_t ends = 0;
  Passed sent;
  Passed received;
};

enum class Seen : std::uint8_t {
  yes,        // though it may have no ends
  no_tables,  // it does not use farcall (yet)
  forbidden,  // EPERM, EACCES
  gone,       // there is no such process (any more)
  silent,     // who reads its memory waits for ever
};

struct Process {
  pid_t pid = 0;
  uid_t user = 0;
  gid_t group = 0;
  std::string command;        // any bytes
  std::uint64_t started = 0;  // ticks since boot: a pid that is used again differs
  pid_t parent = 0;
  bool same_pids = true;   // numbers processes as the caller does
  std::uint32_t mark = 0;  // of who has had it started to be captured, see observe/tap.hpp
  std::vector<End> ends;
  std::vector<TableAt> tables;
  std::vector<Closed> closed;    // kinds of which there were any, in their order
  std::uint64_t not_listed = 0;  // ends for which it had no room
};

inline Owner owner_of(const Process& process) noexcept {
  return {.pid = process.pid, .user = process.user, .group = process.group};
}

// What one user's processes can make a watcher hold: root watches those who may not mean well.
inline constexpr std::size_t kMostEnds = 65'536;

// What of /proc/PID is needed, read once. Of some `most` ends; the rest is not even read.
Seen look(pid_t pid, Process& into, std::size_t most = kMostEnds);

// All processes with tables that the caller may see. Those that had none are looked at less often.
// Of each user no more than kMostEnds. look() throws SystemError where /proc cannot be read, for
// one because no descriptor is left: then it is not known who there is.
class Everybody {
 public:
  // One that had none is left out for so many looks at most.
  explicit Everybody(unsigned most_looks_left_out = 4) noexcept
      : most_left_out_(most_looks_left_out) {}
  enum class Whose : std::uint8_t { all, own };  // own: of the caller's effective user
  std::vector<Process> look(Whose whose = Whose::all);

 private:
  struct Known {
    std::uint64_t started;
    unsigned rounds_to_skip;
    unsigned rounds_in_vain;
  };
  unsigned most_left_out_;
  std::vector<std::pair<pid_t, Known>> plain_;
};

// Whether there is a table at that address (still).
bool has_table(const Owner& of, std::uint64_t address);

// The times that an end has recorded; false: they cannot be read (any more).
bool read_times(const Process& process, const End& end, observe::Times& into);

}  // namespace farcall::watch
