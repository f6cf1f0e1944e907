// SPDX-License-Identifier: Apache-2.0
//
// How long tests wait for what must happen, and watch for what must not.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "harness/sanitizers.hpp"

namespace farcall::test {

using namespace std::chrono_literals;

// No wait for something that must happen takes longer.
inline constexpr std::chrono::milliseconds kPatience = 10s * (kSlow > 1 ? 2 : 1);
// How long to watch for something that must not happen.
inline constexpr std::chrono::milliseconds kGlance = 60ms;

inline std::int64_t now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

// For what nobody tells of: looks again and again.
template <class Condition>
bool eventually(Condition condition, std::chrono::milliseconds time = kPatience) {
  const std::int64_t end = now_ns() + time.count() * 1'000'000;
  while (!condition()) {
    if (now_ns() > end) return condition();
    std::this_thread::sleep_for(500us);
  }
  return true;
}

}  // namespace farcall::test
