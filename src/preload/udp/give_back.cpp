// SPDX-License-Identifier: Apache-2.0
//
// What lies unread in memory when a socket goes where the library cannot follow it: it is passed,
// inherited, or waited for in ways that only the kernel serves. It is sent through the kernel after
// all, from the socket that has sent it, as the receiver sees the sender's address.
#include <sys/socket.h>

#include "preload/permitted.hpp"
#include "preload/proof.hpp"
#include "preload/real.hpp"
#include "preload/udp/udp.hpp"

namespace farcall::preload {
namespace {

// A socket of version 6 sends to mapped addresses.
bool is_of_v4(int fd) noexcept {
  int domain = AF_INET6;
  socklen_t size = sizeof domain;
  kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain == AF_INET;
}

// A copy of the sender's socket, if this process may trace the sender.
long copy_of_sender(const InFlow& flow) noexcept {
  // A filter may end who asks for another process's descriptors.
  if (may_be_filtered()) return -1;
  const long process = kernel(SYS_pidfd_open, flow.sender_pid, 0);
  if (process < 0) return process;
  const long copy = kernel(SYS_pidfd_getfd, process, flow.sender_fd, 0);
  kernel(SYS_close, process);
  if (copy < 0 || is_socket_of(static_cast<int>(copy), flow.from, flow.sender_cookie)) return copy;
  kernel(SYS_close, copy);
  return -1;
}

// Where the sender has gone its address is free.
long successor_of_sender(const InFlow& flow) noexcept {
  sockaddr_in6 name;
  const bool v4 = udp_is_v4(flow.from);
  const socklen_t size = udp_to_name(flow.from, v4, name);
  const long made = kernel(SYS_socket, v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (made < 0 || kernel(SYS_bind, made, &name, size) == 0) return made;
  kernel(SYS_close, made);
  return -1;
}

// Those that the kernel owes to this flow come before it there, too.
bool has_next(DatagramReceiver& receiver) noexcept {
  if (receiver.next() == DatagramReceiver::Next::kernel_first) receiver.kernel_has_no_more();
  return receiver.next() == DatagramReceiver::Next::ready;
}

// What the kernel does not take, or cannot be sent in the sender's name, stays to be read here.
void give_back(InFlow& flow) noexcept {
  DatagramReceiver& receiver = flow.receiver;
  if (!has_next(receiver)) return;
  long sender = copy_of_sender(flow);
  const bool v4 = sender < 0 ? udp_is_v4(flow.from) : is_of_v4(static_cast<int>(sender));
  if (sender < 0) sender = successor_of_sender(flow);
  if (sender < 0) return;
  sockaddr_in6 name;
  iovec parts[2];
  msghdr message{};
  message.msg_name = &name;
  message.msg_namelen = udp_to_name(flow.to, v4, name);
  message.msg_iov = parts;
  // All are there by now, as the flow is watched. A sender that publishes in spite of that has no
  // more of this process's time than one full ring.
  const std::uint64_t end = receiver.position() + receiver.memory().size;
  while (receiver.position() < end && has_next(receiver)) {
    message.msg_iovlen = receiver.parts_of_next(parts);
    if (kernel(SYS_sendmsg, sender, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) break;
    receiver.take(nullptr, 0, false);
  }
  kernel(SYS_close, sender);
}

}  // namespace

void udp_give_back(UdpSocket& socket) noexcept {
  udp_watch_all(socket);
  socket.each_in([](InFlow& flow) noexcept { give_back(flow); });
}

}  // namespace farcall::preload
