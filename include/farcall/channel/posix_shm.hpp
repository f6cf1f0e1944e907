// SPDX-License-Identifier: Apache-2.0
//
// shm_open(3): memory with a name in /dev/shm. The name is random and removed at once; from then on
// the descriptor leads to the memory, so nothing is left behind. A byte ring lies in it, a lifeline
// (socketpair) tells of death.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct PosixShm {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<PosixShm>);

}  // namespace farcall::channel
