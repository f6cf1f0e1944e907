// SPDX-License-Identifier: Apache-2.0
//
// Which socket of this network namespace has these addresses? The kernel's answer (sock_diag).
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "preload/settings.hpp"

namespace farcall::preload {

// The address that SYS_getsockname or SYS_getpeername tells of.
bool address_of(long call, int fd, Endpoint& endpoint) noexcept;

struct FoundSocket {
  std::uint64_t cookie;
  std::uint32_t inode;
  uid_t uid;
  std::uint32_t queued;  // bytes that it has not read; of unix sockets
};

// The TCP socket that is connected from `local` to `remote`. Zero, or the negative errno: ENOENT
// if there is none.
int find_socket(const Endpoint& local, const Endpoint& remote, FoundSocket& found) noexcept;
// The number of the unix socket `fd`, by which the kernel tells of it. 0: it tells none.
std::uint32_t number_of_socket(int fd) noexcept;

struct UnixSocket {
  FoundSocket socket;
  std::uint32_t peer;  // its number; 0: none, or none that anybody has accepted
};
// The number of the socket at the other end of the unix socket of that number; likewise. It remains
// the same as long as that is there. And that socket, for whom both numbers are known.
int find_unix_peer_number(std::uint32_t own, std::uint32_t& number) noexcept;
int find_unix_peer(std::uint32_t own, std::uint32_t number, FoundSocket& found) noexcept;
// Calls each(context, socket) for every unix socket of this network namespace that is connected.
// False if the kernel does not tell of all. How much they have not read is not told.
bool for_each_unix_socket(void (*each)(void* context, const UnixSocket& socket),
                          void* context) noexcept;
// The UDP socket that a datagram from `from` to `to` reaches; likewise.
int find_receiver(const Endpoint& from, const Endpoint& to, FoundSocket& found) noexcept;
// Whether a UDP socket at that port has that cookie. What the kernel does not tell counts as yes.
bool has_udp_socket(std::uint16_t port, std::uint64_t cookie) noexcept;

}  // namespace farcall::preload
