// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace farcall::bridge {

// Counts a thread while it is in a scope.
template <class Number>
class Inside {
 public:
  explicit Inside(std::atomic<Number>& count) noexcept : count_(count) { ++count_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  ~Inside() { --count_; }

 private:
  std::atomic<Number>& count_;
};

}  // namespace farcall::bridge
