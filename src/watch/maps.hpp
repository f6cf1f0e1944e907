// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "watch/memory.hpp"
#include "watch/process.hpp"

namespace farcall::watch {

struct Maps {
  std::vector<std::uint64_t> tables;  // where one may be
  std::vector<Session> files;         // that are mapped; sorted by inode
};

// Reads /proc/PID/maps. 0, or an errno value, see read_text().
int read_maps(const Owner& of, Maps& into);
// One line of it; `into` gets a file, and `previous` remembers what tables are recognised by.
class MapsReader {
 public:
  void line(const char* text, Maps& into);

 private:
  struct Area {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    enum : std::uint8_t { other, none, writable } kind = other;
  };
  Area before_last_;
  Area last_;
};

}  // namespace farcall::watch
