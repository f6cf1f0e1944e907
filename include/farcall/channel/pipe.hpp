// SPDX-License-Identifier: Apache-2.0
//
// pipe(2): a byte stream in the kernel, 64 KiB deep by default, writes up to PIPE_BUF (4096)
// bytes atomic. The reader sees the end when the last writing descriptor is closed, so it cannot
// tell a writer that died from one that finished.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Pipe {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Pipe>);

}  // namespace farcall::channel
