// SPDX-License-Identifier: Apache-2.0
//
// One datagram, from memory or from the kernel, without waiting: what a receive call is made of.
// The lock is held. Results are sizes or negative errnos; -EAGAIN: nothing.
#pragma once

#include <algorithm>
#include <cstring>

#include "preload/address.hpp"
#include "preload/udp.hpp"

namespace farcall::preload {

// -EAGAIN: nothing in memory, or (`kernel_first`) the kernel has what comes before it.
ssize_t udp_take_from_memory(UdpSocket& socket, int fd, msghdr& message, int flags,
                             bool& kernel_first) noexcept;
// From memory or from the kernel. Afterwards all flows are watched.
ssize_t udp_take_now(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept;
bool udp_kernel_has_something(UdpSocket& socket, int fd) noexcept;
// Flows begin when the kernel's queue is seen empty; asked for only as long as some have not.
void udp_begin_flows(UdpSocket& socket, int fd) noexcept;
// One of the kernel's datagrams has been received.
void udp_note_came(UdpSocket& socket, int fd, const sockaddr_in6& name, const msghdr& message,
                   std::size_t bytes) noexcept;

// recvmsg() of the kernel, with the sender's address even where the program does not want it.
template <class Call>
ssize_t named_receive(msghdr& message, sockaddr_in6& name, Call call) noexcept {
  void* const wanted = message.msg_name;
  const socklen_t room = message.msg_namelen;
  name = {};
  if (is_bad_optional(wanted)) return call(message);
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  const ssize_t result = call(message);
  message.msg_name = wanted;
  if (wanted != nullptr && result >= 0)
    std::memcpy(wanted, &name, std::min(room, message.msg_namelen));
  else
    message.msg_namelen = room;
  return result;
}

}  // namespace farcall::preload
