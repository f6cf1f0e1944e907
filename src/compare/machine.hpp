// SPDX-License-Identifier: Apache-2.0
//
// What the figures of a comparison depend on besides the mechanisms.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compare/placement.hpp"

namespace farcall::compare {

struct Machine {
  std::string cpu;
  std::size_t processors = 0;
  std::vector<int> allowed;
  int first_processor = 0;   // where the client is pinned
  int second_processor = 0;  // where the server is, with two
  bool siblings = false;     // these two share a core
  std::string kernel;
  std::string virtualization;  // "none", or what /sys or the processor say
  std::string governor;        // "unknown" where the kernel does not tell
  std::map<std::string, std::string> mitigations;
  std::string clock_source;
  double timer_ns = 0;  // what one look at the clock adds to each sample
  std::size_t page_bytes = 0;
  std::size_t memory_bytes = 0;
  double load = 0;  // of the last minute, when it began: others who used the machine
  std::string build_type;
  std::string compiler;
  std::string time;  // UTC, ISO 8601
  // Peers that can be measured, their daemons and libc; without a version where none can be told.
  std::map<std::string, std::optional<std::string>> libraries;
  std::string command;  // that of this process, with a space between words
};

Machine describe_machine(const Processors& processors);

}  // namespace farcall::compare
