// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

#include "farcall/memory.hpp"

namespace farcall {

// The list of groups of the other end when the connection was made (SO_PEERGROUPS), without its own
// group; nothing where the kernel does not tell. Groups that have no number here are the overflow
// id.
std::optional<std::vector<gid_t>> groups_of_peer(int socket);

// The process that has made a pair of sockets, or connected or listened: whether it has ended, and,
// where it may still be there, a descriptor that is readable once it has. Neither where the kernel
// does not tell (before Linux 6.5), or there is no descriptor left. One system call, of a kind that
// who uses sockets makes in any case: a program may have forbidden itself others.
struct PeerProcess {
  UniqueFd descriptor;
  bool ended = false;
};
PeerProcess process_of_peer(int socket) noexcept;
// The same, asked now.
bool has_peer_ended(int socket) noexcept;

}  // namespace farcall
