// SPDX-License-Identifier: Apache-2.0
#include "channel/loopback.hpp"

#include <arpa/inet.h>
#include <sys/socket.h>

#include "channel/descriptor.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {

UniqueFd loopback_socket(int type) {
  UniqueFd fd(::socket(AF_INET, type | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw_errno("bind to 127.0.0.1");
  return fd;
}

sockaddr_in local_address(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw_errno("getsockname");
  return address;
}

void connect_loopback(int socket, const sockaddr_in& address) {
  if (uninterrupted([&] {
        return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
      }) != 0)
    throw_errno("connect on loopback");
}

UniqueFd accept_only(int listener, const sockaddr_in& from) {
  for (;;) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    UniqueFd fd(uninterrupted([&] {
      return ::accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC);
    }));
    if (!fd && errno != ECONNABORTED) throw_errno("accept on loopback");
    if (fd && peer.sin_port == from.sin_port && peer.sin_addr.s_addr == from.sin_addr.s_addr)
      return fd;
  }
}

}  // namespace farcall::channel
