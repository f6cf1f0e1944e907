// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <vector>

namespace farcall {

// The list of groups of the other end when the connection was made (SO_PEERGROUPS), without its own
// group; nothing where the kernel does not tell. Groups that have no number here are the overflow
// id.
std::optional<std::vector<gid_t>> groups_of_peer(int socket);

}  // namespace farcall
