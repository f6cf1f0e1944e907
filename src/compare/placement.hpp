// SPDX-License-Identifier: Apache-2.0
//
// On which processors the two sides run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compare/row.hpp"

namespace farcall::compare {

enum class Placement { two_cpus, one_cpu, free };

std::string_view to_string(Placement placement) noexcept;
std::optional<Placement> parse_placement(std::string_view name) noexcept;

// The processors that this process may use and those of them that the sides are pinned to.
class Processors {
 public:
  // Reads the affinity of the calling thread and the topology in /sys. Throws SystemError.
  Processors();

  [[nodiscard]] const std::vector<int>& allowed() const noexcept { return allowed_; }
  // Why this placement is impossible here; empty if it is possible.
  [[nodiscard]] std::string refuses(Placement placement) const;
  // Where a side runs; none: wherever the scheduler wants.
  [[nodiscard]] std::optional<int> processor(Placement placement, Role role) const;
  // The two processors share one core, so they also share its caches and its time.
  [[nodiscard]] bool two_are_siblings() const noexcept { return siblings_; }

 private:
  std::vector<int> allowed_;
  int first_ = 0;
  int second_ = 0;
  bool siblings_ = false;
};

// Pins the calling thread, and with it every thread it starts. Throws SystemError.
void pin_to(int processor);
// Lets this process run again where it might before it was first pinned, or one of those before it
// in which pin_to() was called. Where that is no longer possible it stays.
void unpin() noexcept;

}  // namespace farcall::compare
