// SPDX-License-Identifier: Apache-2.0
//
// UDP over the loopback interface: two sockets on 127.0.0.1, connected to each other, so that
// datagrams of others are refused; each end holds both, so that a port is anybody's only when both
// ends have gone. UDP itself promises nothing; here no message is lost or overtaken:
//
//   * The kernel drops what does not fit the receiver's buffer. The writer therefore spends from a
//     window, half the receiver's SO_RCVBUF (twice Options::buffer_bytes, at most
//     /proc/sys/net/core/rmem_max), and the reader grants it again over a lifeline, a quarter of
//     the window at a time. Each datagram is charged what the kernel charges: for a small one,
//     the next power of two above its own size and the kernel's headers, plus sizeof(sk_buff);
//     for a large one, its size and a few pages. Only half is spent because the kernel may
//     delay giving back a quarter.
//   * Packets sent from two processors can overtake each other, and netem or memory pressure can
//     lose them, so each datagram starts with a sequence number of 4 bytes. The reader puts
//     messages in order; one that stays away for a second is SystemError ENOBUFS.
//
// The longest message is 65,503 bytes: the 65,507 of UDP less that number.
#pragma once

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

struct Udp {
  static const Properties& properties();
  static Handles create(const Options& options);
  static std::unique_ptr<Reader> open_reader(Handle handle, const Options& options);
  static std::unique_ptr<Writer> open_writer(Handle handle, const Options& options);
};
static_assert(Mechanism<Udp>);

}  // namespace farcall::channel
