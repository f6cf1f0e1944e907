// SPDX-License-Identifier: Apache-2.0
//
// How a server gives a client a socket that only the server has made. The client sends a socket of
// its own with what it asks for; there it gets one end of a pair, of which the server keeps the
// other. A socket that a client has made is never read: its maker can hold its locks, set its
// options, and let others speak through it.
#pragma once

#include <utility>

#include "farcall/socket.hpp"
#include "process/process.hpp"

namespace farcall {

// Whether it is a unix socket of packets. Waits for nobody, whatever it is.
bool is_packet_socket(int descriptor) noexcept;

// Whether user and group have numbers in the user namespace of this process.
bool has_number_here(const Credentials& who) noexcept;

// Whether a client's descriptor is a packet socket that the sender itself has made. One that was
// connected to somebody else's listener would be spoken to in the server's name. Of a sender that
// has no number here as a user or a group (in a namespace) that cannot be told: false. One that has
// none as a process is taken for any other of that user's and group's that has none: they can do
// nothing that it could not. Waits for nobody.
bool made_by_sender(int answers, const Credentials& sender) noexcept;

// The server's end, which says who has sent each packet (SO_PASSCRED), and the client's. Throws
// SystemError.
std::pair<process::PrivateFd, process::PrivateFd> server_socket_pair();
// Packet sockets that no child ever has. Throws SystemError.
std::pair<process::PrivateFd, process::PrivateFd> private_socket_pair();
// Whether anything comes with the next packet beside who has sent it. Takes nothing.
bool more_comes_next(int packet_socket) noexcept;

}  // namespace farcall
