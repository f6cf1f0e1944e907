// SPDX-License-Identifier: Apache-2.0
//
// What a publisher tells a reader first, through the socket that is their lifeline from then on.
// With it come two descriptors: the ring, and the page that the two share.
#pragma once

#include <cstdint>

#include "farcall/ring/broadcast_ring.hpp"

namespace farcall::broadcast {

struct Welcome {
  static constexpr std::uint64_t kMagic = 0x32746e6573627573;  // "subsent2"

  std::uint64_t magic = kMagic;
  std::uint32_t error = 0;       // an errno: it is not let in, and nothing comes along
  std::uint32_t waited_for = 0;  // the writer waits for it, or drops it
  BroadcastPlace oldest;
  BroadcastPlace newest;
};

// How a reader's page says that it was too slow, where others are open or finished.
inline constexpr std::uint32_t kDropped = 2;

// What a reader has read, with which its page begins, is the oldest with this added: it has not
// begun. It takes that away where it begins with the oldest. A writer that drops readers, and can
// not leave it that, has it begin with the newest as of when it came, and drops it only where that
// is to be written over as well.
inline constexpr std::uint64_t kNotBegun = 1;
static_assert(kNotBegun < kLine);

}  // namespace farcall::broadcast
