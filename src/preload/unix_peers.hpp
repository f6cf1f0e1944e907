// SPDX-License-Identifier: Apache-2.0
//
// Which socket is at the other end of a unix socket, as the kernel says (sock_diag), once for each.
//
// Asked about one, the kernel looks through all connected sockets of the machine; it tells of all
// of them together for as much as some forty such looks. So where many sides want to know, they are
// told together: as soon as they are an eighth of what has to be looked through, which costs each
// a few microseconds however many there are. Fewer are looked for as far as a budget of time goes.
#pragma once

#include "preload/diag.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

// The number of the side's own socket; 0: it has none. From now on the side is told with others.
std::uint32_t await_unix_peer(int fd, const Side& side) noexcept;

// The number of the socket at the other end, and that socket; `found.queued` is not told. Zero, or
// the negative errno. EAGAIN: not now, ask again at a later call; of find_unix_peer_of() only where
// the number is not known yet.
int number_of_unix_peer(int fd, const Side& side, std::uint32_t& number) noexcept;
int find_unix_peer_of(int fd, const Side& side, FoundSocket& found) noexcept;

// How many bytes the socket at the other end, which is known, has not read. Negative errno.
long queued_at_unix_peer(int fd, const Side& side) noexcept;

}  // namespace farcall::preload
