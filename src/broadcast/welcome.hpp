// SPDX-License-Identifier: Apache-2.0
//
// What a publisher tells a reader first, through the socket that is their lifeline from then on.
// With it come two descriptors: the ring, and the page that the two share.
#pragma once

#include <cstdint>

#include "farcall/ring/broadcast_ring.hpp"

namespace farcall::broadcast {

struct Welcome {
  static constexpr std::uint64_t kMagic = 0x31746e6573627573;  // "subsent1"

  std::uint64_t magic = kMagic;
  std::uint32_t error = 0;       // an errno: it is not let in, and nothing comes along
  std::uint32_t waited_for = 0;  // the writer waits for it, or drops it
  BroadcastPlace oldest;
  BroadcastPlace newest;
};

// How a reader's page says that it was too slow, where others are open or finished.
inline constexpr std::uint32_t kDropped = 2;

}  // namespace farcall::broadcast
