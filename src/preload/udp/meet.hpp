// SPDX-License-Identifier: Apache-2.0
//
// How sender and receiver of datagrams meet: under an abstract name made from the address that the
// receiver is bound to.
//
//   sender                                   receiver
//     connects, and goes on sending            accepts at one of its calls, says that it is there
//     sees that: leaves the memory of the
//     flow and a witness of its socket, sends  sees them when that datagram comes, checks, maps,
//     waits for the answer, a moment only      answers with a witness of its socket
//     checks, and closes the connection
//
// Neither believes what the other says of itself. The user is what the kernel says of the unix
// socket. That each speaks for its address it proves by a witness of the socket that has it
// (../proof.hpp); that this is the socket that datagrams from one address to the other reach, the
// kernel is asked (sock_diag, which names it by its cookie and its number). The socket itself is
// not passed: either end may go on for long without taking what lies in the connection, which would
// keep the port bound after the program has closed the socket, or died.
#pragma once

#include <sys/un.h>

#include <cstdint>

#include "preload/proof.hpp"
#include "preload/udp/udp.hpp"

namespace farcall::preload {

inline constexpr std::uint16_t kMostLooks = 64;               // for the other end's next step
inline constexpr std::uint64_t kMagic = 0x35504455'4c434146;  // "FACLUDP5"

// The receiver is there, and in the answer: has mapped the memory. With its witness.
struct Answer {
  std::uint64_t magic;
  std::uint64_t receiver_cookie;
};

// With the memory and the sender's witness.
struct Hello {
  std::uint64_t magic;
  std::uint64_t sender_cookie;
  std::uint64_t receiver_cookie;
  std::uint64_t ring_bytes;
  Endpoint from;
  Endpoint to;
  std::int32_t sender_fd;  // what its socket is called where it comes from
};

socklen_t meeting_name(const Endpoint& endpoint, sockaddr_un& name) noexcept;
bool map_flow(int memory, std::uint64_t ring_bytes, DatagramMemory& mapped) noexcept;

}  // namespace farcall::preload
