// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <ctime>

namespace farcall::observe {

// CLOCK_MONOTONIC. farcall::monotonic_ns() is the same for those who have the library.
inline std::int64_t monotonic_ns() noexcept {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

}  // namespace farcall::observe
