// SPDX-License-Identifier: Apache-2.0
//
// What tests of waits share.
#pragma once

#include <atomic>
#include <utility>

#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::test {

// Two sides in one process, as two threads use them.
struct Sides {
  WaitState mine{};
  WaitState peers{};
  std::atomic<bool> word{false};
  std::pair<UniqueFd, UniqueFd> lifeline = socket_pair();

  [[nodiscard]] bool ready() const { return word.load(std::memory_order_acquire); }
};

}  // namespace farcall::test
