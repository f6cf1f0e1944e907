// SPDX-License-Identifier: Apache-2.0
//
// One datagram, from memory or from the kernel, without waiting: what a receive call is made of.
// The lock is held. Results are sizes or negative errnos; -EAGAIN: nothing.
#pragma once

#include <algorithm>
#include <cstring>

#include "preload/address.hpp"
#include "preload/udp/udp.hpp"

namespace farcall::preload {

// -EAGAIN: nothing in memory, or (`kernel_first`) the kernel has what comes before it.
ssize_t udp_take_from_memory(UdpSocket& socket, int fd, msghdr& message, int flags,
                             bool& kernel_first) noexcept;
// From memory or from the kernel. Afterwards all flows are watched.
ssize_t udp_take_now(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept;
bool udp_kernel_has_something(UdpSocket& socket, int fd) noexcept;
// Flows of which the kernel may have dropped some are known as such until its queue is seen empty.
void udp_note_losses(UdpSocket& socket, int fd) noexcept;
// Flows begin when the kernel's queue is seen empty; asked for only as long as some have not.
void udp_begin_flows(UdpSocket& socket, int fd) noexcept;
// One of the kernel's datagrams has been received.
void udp_note_came(UdpSocket& socket, int fd, const sockaddr_in6& name, const msghdr& message,
                   std::size_t bytes) noexcept;

// recvmsg() of the kernel, with the sender's address even where the program does not want it.
template <class Call>
ssize_t named_receive(msghdr& message, sockaddr_in6& name, Call call) noexcept {
  name = {};
  if (is_bad_optional(message.msg_name)) return call(message);
  // Not in the program's own: a handler may leave the call by a jump.
  msghdr asked = message;
  asked.msg_name = &name;
  asked.msg_namelen = sizeof name;
  const ssize_t result = call(asked);
  if (result < 0) return result;
  message.msg_controllen = asked.msg_controllen;
  message.msg_flags = asked.msg_flags;
  if (message.msg_name == nullptr) return result;
  std::memcpy(message.msg_name, &name, std::min(message.msg_namelen, asked.msg_namelen));
  message.msg_namelen = asked.msg_namelen;
  return result;
}

}  // namespace farcall::preload
