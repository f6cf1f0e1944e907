// SPDX-License-Identifier: Apache-2.0
//
// For how long somebody looks: until a moment on CLOCK_MONOTONIC, in the word that says so.
#pragma once

#include <cstdint>

#include "observe/clock.hpp"

namespace farcall::observe {

// A lease for longer than that is somebody's mistake, or of another time namespace.
inline constexpr std::int64_t kLongestLease = 20'000'000'000;

inline bool lasts(std::uint64_t until, std::int64_t now) noexcept {
  const auto moment = static_cast<std::int64_t>(until);
  return moment > now && moment - now <= kLongestLease;
}

}  // namespace farcall::observe
