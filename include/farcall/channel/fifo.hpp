// SPDX-License-Identifier: Apache-2.0
//
// mkfifo(3): a pipe that is opened by a path. Once open it behaves as a pipe does (pipe.hpp). The
// path, in a directory of its own under $TMPDIR or /tmp, exists for the moment between making and
// opening it; both ends then travel as descriptors.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Fifo {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Fifo>);

}  // namespace farcall::channel
