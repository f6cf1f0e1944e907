// SPDX-License-Identifier: Apache-2.0
//
// memfd_create(2), unsealed: a memory file without a name. A byte ring lies in it, a lifeline
// (socketpair) tells of death. The ends trust each other not to shrink the file; `ring` seals it.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Memfd {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Memfd>);

}  // namespace farcall::channel
