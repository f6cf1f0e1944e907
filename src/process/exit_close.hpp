// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <list>

#include "process/process.hpp"

namespace farcall::process {

// Closes sockets in which others may have left what lingers. The last close of a TCP socket may
// wait for its peer as long as whoever had it likes (SO_LINGER), and the last close of a unix
// socket for all that lies in it. Not so the last close by a thread that ends, and that is what
// does it: it has a table of descriptors of its own, and is sent them before they are closed here.
// (It could fetch them with pidfd_getfd(2), which filters of system calls do not let services do.)
// False: this system does not let it, and those that are left are open.
bool close_by_exit(std::list<PrivateFd>& sockets) noexcept;

}  // namespace farcall::process
