// SPDX-License-Identifier: Apache-2.0
//
// socketpair(AF_UNIX, SOCK_DGRAM): messages in order and none lost, but neither end nor death: a
// second pair of sockets beside it tells of both. The longest message is the sender's SO_SNDBUF
// less 32 bytes, some 200 KiB by default; Options::buffer_bytes raises it, up to twice
// /proc/sys/net/core/wmem_max and to 1 MiB at most. The kernel wants the larger part of a long
// message in one piece of memory: if it has none, send() fails with ENOBUFS. write() splits into
// messages of at most 64 KiB, for which it needs no large pieces.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct UnixDgram {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<UnixDgram>);

}  // namespace farcall::channel
