// SPDX-License-Identifier: Apache-2.0
//
// Which messages are wanted, in the language of tcpdump(8), as far as it makes sense here:
//
//   filter   = all { "or" all }
//   all      = term { "and" term }
//   term     = [ "not" ] ( "(" filter ")" | "host" ADDRESS | "port" NUMBER | "pid" NUMBER | kind )
//   kind     = "tcp" "udp" "unix" "ring" "call" "door" "channel" "broadcast"
//
// ||, && and ! are the same as or, and, not.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "farcall/observe.hpp"

namespace farcall::capture {

// What a filter asks about: an end, and by it what passes there.
struct Subject {
  observe::Kind kind;
  observe::Address local;
  observe::Address remote;
  pid_t pid;
  pid_t peer;  // 0: not known
};

class Filter {
 public:
  // Empty: everything. Throws std::invalid_argument that says what is wrong and where.
  explicit Filter(std::string_view text);
  [[nodiscard]] bool matches(const Subject& subject) const;

 private:
  friend class FilterParser;
  enum class Op : std::uint8_t { kind, host, port, pid, invert, both, either };
  // In the order of evaluation: an operator takes what the ones before it have left.
  struct Step {
    Op op;
    std::uint32_t number = 0;
    observe::Address address{};
  };
  std::vector<Step> steps_;
};

}  // namespace farcall::capture
