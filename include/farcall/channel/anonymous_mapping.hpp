// SPDX-License-Identifier: Apache-2.0
//
// mmap(2) with MAP_SHARED and MAP_ANONYMOUS: memory that only children forked later share. Nothing
// in it orders or wakes, so a byte ring lies in it; a lifeline (socketpair) tells of death.
// A writer finds a reader that was killed when the ring is full; one that closed, at once.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct AnonymousMapping {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<AnonymousMapping>);

}  // namespace farcall::channel
