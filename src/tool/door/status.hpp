// SPDX-License-Identifier: Apache-2.0
//
// How `farcall door serve` tells `farcall door call` that its command failed: a reply has bytes and
// descriptors, and all bytes are the command's, so it is one descriptor, of a sealed memory file
// that reads "farcall door: exit 3" or "farcall door: signal 9".
#pragma once

#include <optional>
#include <string>

#include "farcall/door.hpp"

namespace farcall::tool::door {

// For a status as waitpid() gives it. Throws DoorError.
DoorDescriptor make_status(int wait_status);
// What the file says, in words: "exited with 3". Nothing where it is another file; whoever serves
// the door may have sent anything.
std::optional<std::string> read_status(int fd);

}  // namespace farcall::tool::door
