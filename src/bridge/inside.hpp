// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace farcall::bridge {

// Counts a thread while it is in a scope.
class Inside {
 public:
  explicit Inside(std::atomic<unsigned>& count) noexcept : count_(count) { ++count_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { --count_; }

 private:
  std::atomic<unsigned>& count_;
};

}  // namespace farcall::bridge
