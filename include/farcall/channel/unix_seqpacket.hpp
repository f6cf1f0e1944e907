// SPDX-License-Identifier: Apache-2.0
//
// socketpair(AF_UNIX, SOCK_SEQPACKET): messages in order, with an end. To recv() that end looks
// like a message of no bytes, so the writer announces such messages on a second pair of sockets,
// which also tells a writer that has finished from one that has died. Messages with bytes in them
// cost nothing more. The longest message is as with datagrams (unix_dgram.hpp).
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct UnixSeqpacket {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<UnixSeqpacket>);

}  // namespace farcall::channel
