// SPDX-License-Identifier: Apache-2.0
//
// For how long somebody looks: until a moment on CLOCK_MONOTONIC, in the word that says so.
#pragma once

#include <cstdint>
#include <ctime>

namespace farcall::observe {

// A lease for longer than that is somebody's mistake, or of another time namespace.
inline constexpr std::int64_t kLongestLease = 20'000'000'000;

inline std::int64_t monotonic_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

inline bool lasts(std::uint64_t until, std::int64_t now) noexcept {
  const auto moment = static_cast<std::int64_t>(until);
  return moment > now && moment - now <= kLongestLease;
}

}  // namespace farcall::observe
