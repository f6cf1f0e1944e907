// SPDX-License-Identifier: Apache-2.0
//
// msgget(2): a queue of messages in the kernel that has a number, no descriptor, and a life of its
// own. The longest message is /proc/sys/kernel/msgmax, 8,192 bytes by default; write() splits. The
// queue holds /proc/sys/kernel/msgmnb bytes or Options::buffer_bytes, whichever is less.
//
// msgsnd and msgrcv can only be woken through the queue. So each end, once used, has a thread that
// sleeps on a pair of sockets beside it: when the writer has finished or died, the reader's thread
// puts a mark behind the last message; when the reader has gone, the writer's thread removes the
// queue.
//
// The queue is made when the first end is opened and removed with the reader's end, or with the
// writer's where there is no reader. If both are killed it stays. Such leftovers are recognised:
// the key tells that the queue is ours, and an abstract unix name that both ends hold tells that
// somebody still uses it. The next process of this user that makes such a channel removes them,
// and so does clean_leftovers (clean.hpp).
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct SysvMq {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<SysvMq>);

}  // namespace farcall::channel
