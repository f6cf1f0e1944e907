// SPDX-License-Identifier: Apache-2.0
//
// Our own: a message ring (farcall/ring.hpp) in a sealed memory file, of which the reader maps the
// data read-only, so neither end can hurt the other. Messages of any size, also 0; long ones travel
// in pieces while the reader reads. A lifeline (socketpair) tells of death.
// A writer finds a reader that was killed when the ring is full; one that closed, at once.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Ring {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Ring>);

}  // namespace farcall::channel
