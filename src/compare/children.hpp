// SPDX-License-Identifier: Apache-2.0
//
// Tells the processes of a slot from the other children that this process has: one keeps those it
// had before it executed this program, as under `sh -c 'server & exec farcall compare'`, or where a
// shell put its last command in its own place, and gets what those leave behind when they end.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <set>
#include <utility>

namespace farcall::compare {

class OtherChildren {
 public:
  // The children that there are now are others.
  void note();
  // Whether there is a child, running or not waited for, that is none of them. True where there
  // were no others: that there are no children at all is then for waitpid(2) to say.
  [[nodiscard]] bool has_more() const noexcept;

 private:
  // With when it began: a number may be given anew.
  using Child = std::pair<pid_t, std::uint64_t>;
  static std::set<Child> list();
  std::set<Child> others_;
};

}  // namespace farcall::compare
