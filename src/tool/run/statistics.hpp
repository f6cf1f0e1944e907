// SPDX-License-Identifier: Apache-2.0
//
// What the preload library has counted in a program and its children.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "farcall/memory.hpp"
#include "preload/stats.hpp"

namespace farcall::tool::run {

struct Way {
  std::uint64_t bytes;
  std::uint64_t messages;
};

// What was counted of one endpoint, read once: others may still be counting.
struct Line {
  std::string protocol;
  std::string endpoint;
  std::uint64_t connections;
  std::uint64_t accelerated;
  std::array<std::uint64_t, preload::kReasons> reasons;
  Way ring;
  Way kernel;
  std::uint64_t dropped;
};

// The memory file that they count in; this process holds it.
class Statistics {
 public:
  Statistics();  // throws SystemError

  // Under which name they find it.
  [[nodiscard]] std::string name() const;
  // Lines for people; `program` is what they are about.
  [[nodiscard]] std::string text(const std::string& program) const;
  [[nodiscard]] std::string json() const;
  [[nodiscard]] std::vector<Line> lines() const;
  [[nodiscard]] std::uint64_t not_listed() const;  // connections to endpoints that are too many

 private:
  SharedMemory memory_;
  Mapping mapping_;
  preload::StatsPage* page_;
};

}  // namespace farcall::tool::run
