// SPDX-License-Identifier: Apache-2.0
//
// The peer's own end of a connection, borrowed from its process for a moment.
#pragma once

#include "preload/side.hpp"

namespace farcall::preload {

// A new descriptor of the socket at the other end of `fd`, if a process holds it, first of all the
// one that shares memory with this side, and the kernel lets this one reach for it (as it lets a
// debugger). Negative errno otherwise.
int borrow_peer_socket(int fd, const Side& side) noexcept;

}  // namespace farcall::preload
