// SPDX-License-Identifier: Apache-2.0
//
// mq_open(3): a queue of messages in the kernel. Its name goes as soon as both ends are open, so
// nothing stays in /dev/mqueue; the descriptors travel. It knows neither end nor death: a pair of
// sockets beside it tells of both.
//
// The longest message is /proc/sys/fs/mqueue/msgsize_max, 8,192 bytes by default; write() splits.
// The queue holds Options::buffer_bytes in messages of that size, or 10 messages, but no more than
// /proc/sys/fs/mqueue/msg_max. All queues of a user together may hold RLIMIT_MSGQUEUE bytes,
// 819,200 by default, which is nine queues: where that is used up a queue gets fewer messages,
// down to one, and then there is none: SystemError EMFILE.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct PosixMq {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<PosixMq>);

}  // namespace farcall::channel
