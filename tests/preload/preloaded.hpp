// SPDX-License-Identifier: Apache-2.0
//
// For tests that run plain and with the library preloaded.
#pragma once

#include <cstdlib>
#include <fstream>
#include <string>

namespace farcall::preload {

inline bool preloaded() { return std::getenv("LD_PRELOAD") != nullptr; }

// How many mappings of memory with that name this process has.
inline int shared_mappings(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:" + name) != std::string::npos) ++count;
  return count;
}

}  // namespace farcall::preload
