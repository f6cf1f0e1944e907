// SPDX-License-Identifier: Apache-2.0
//
// Sockets on 127.0.0.1, where anybody on the machine may try to come in between.
#pragma once

#include <netinet/in.h>

#include "farcall/memory.hpp"

namespace farcall::channel {

// A socket of this type, bound to a port that the kernel chose. Throws SystemError.
UniqueFd loopback_socket(int type);
sockaddr_in local_address(int socket);
void connect_loopback(int socket, const sockaddr_in& address);
// Accepts the connection from exactly this address; others are closed. Throws SystemError.
UniqueFd accept_only(int listener, const sockaddr_in& from);

}  // namespace farcall::channel
