// SPDX-License-Identifier: Apache-2.0
//
// shmget(2): memory with a number that anybody of this user can attach. The segment is marked for
// removal at once, so that the kernel frees it after the last process is gone; Linux lets others
// attach a marked segment by its number while somebody is attached. A byte ring lies in it, a
// lifeline (socketpair) tells of death.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct SysvShm {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<SysvShm>);

}  // namespace farcall::channel
