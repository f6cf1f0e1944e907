// SPDX-License-Identifier: Apache-2.0
//
// The word of a hand-back as a peer finds it that keeps to nothing.
#pragma once

#include <atomic>
#include <cstdint>

#include "preload/stream.hpp"

namespace farcall::preload {

inline std::atomic<std::uint64_t>& raw(HandbackWord& word) {
  static_assert(sizeof(HandbackWord) == sizeof(std::atomic<std::uint64_t>));
  return reinterpret_cast<std::atomic<std::uint64_t>&>(word);
}

inline HandbackWord::State state_of(std::uint64_t word) {
  return static_cast<HandbackWord::State>(word & 7);
}

}  // namespace farcall::preload
