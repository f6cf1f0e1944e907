// SPDX-License-Identifier: Apache-2.0
//
// How the two ends of a connection find each other and come to share memory.
//
// Nothing here waits. After a few calls the connecting end listens on an abstract unix name made
// of the two addresses, or of its socket's number; the accepting end, at one of its next calls,
// connects to it, leaves there a sealed memory file with a few words, and closes; the connecting
// end, at one of its next calls, takes them. From then on neither holds a descriptor for it. Each
// is sure of the other because the kernel says which socket (by its cookie, from sock_diag) is the
// other end of its own, and whose that is (of unix sockets, unix_peers.hpp); and whoever comes, or
// listens, must be that user.
#pragma once

#include "preload/side.hpp"

struct sockaddr;

namespace farcall::preload {

// After so many calls each end begins to look for the other.
inline constexpr std::uint32_t kConnectorBegins = 4;
inline constexpr std::uint32_t kAcceptorBegins = 6;

// A connection was made, or is being made, over `fd`: remember it if it may be accelerated.
// `peer` is the address of the other end.
void note_connection(int fd, const sockaddr* peer, socklen_t size, bool connector) noexcept;
// A pair of unix sockets was made.
void note_pair(const int (&fds)[2]) noexcept;

// From now on no socket is accelerated that is not already.
void no_more_candidates() noexcept;
[[nodiscard]] bool acceleration_ended() noexcept;
// Whether note_connection() does anything.
[[nodiscard]] bool may_accelerate() noexcept;

// If the connection is not accelerated yet it never will be. Returns whether that is so.
bool end_candidacy(Side& side) noexcept;
// The same, and says why. Holds no lock.
bool end_candidacy(int fd, Side& side, Reason reason) noexcept;

// After a call on a candidate that moved data, with no lock held. May forget `fd`.
void take_next_step(int fd, Side& side) noexcept;

inline void count_call(int fd, Side& side) noexcept {
  const std::uint32_t calls = side.calls.fetch_add(1, std::memory_order_relaxed) + 1;
  if (calls >= side.next_try.load(std::memory_order_relaxed)) take_next_step(fd, side);
}

}  // namespace farcall::preload
