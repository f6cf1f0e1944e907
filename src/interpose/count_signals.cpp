// SPDX-License-Identifier: Apache-2.0
//
// For libraries whose calls end when a signal was caught: each is counted.
#include "farcall/wait.hpp"
#include "interpose/signals.hpp"
#include "wait/counts_handler.hpp"

namespace farcall::interpose {
namespace {

[[maybe_unused]] const bool kCounts = [] {
  counts_handler.store(is_wrapped, std::memory_order_relaxed);
  return true;
}();

}  // namespace

bool before_handler(int) noexcept {
  note_signal();
  return true;
}
bool before_handler(int, siginfo_t*, void*) noexcept {
  note_signal();
  return true;
}

}  // namespace farcall::interpose
