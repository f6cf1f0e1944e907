// SPDX-License-Identifier: Apache-2.0
//
// TCP over the loopback interface: a connected pair on 127.0.0.1, without Nagle's delay. The end is
// the writer's FIN, which the kernel also sends for a writer that died. The reader's side resets
// the connection when it closes: a writer learns at once that nobody reads, and no port lingers in
// TIME_WAIT.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Tcp {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Tcp>);

}  // namespace farcall::channel
