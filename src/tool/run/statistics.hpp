// SPDX-License-Identifier: Apache-2.0
//
// What the preload library has counted in a program and its children.
#pragma once

#include <string>

#include "farcall/memory.hpp"
#include "preload/stats.hpp"

namespace farcall::tool::run {

// The memory file that they count in; this process holds it.
class Statistics {
 public:
  Statistics();  // throws SystemError

  // Under which name they find it.
  [[nodiscard]] std::string name() const;
  // Lines for people; `program` is what they are about.
  [[nodiscard]] std::string text(const std::string& program) const;
  [[nodiscard]] std::string json() const;

 private:
  SharedMemory memory_;
  Mapping mapping_;
  preload::StatsPage* page_;
};

}  // namespace farcall::tool::run
