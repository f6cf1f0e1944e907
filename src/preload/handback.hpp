// SPDX-License-Identifier: Apache-2.0
//
// Giving a connection back to the kernel for good, where the library cannot follow it.
#pragma once

#include "preload/side.hpp"

namespace farcall::preload {

// From here on every byte of this connection is the kernel's. Waits, for a moment at most, where
// the ring holds bytes that the peer must send again.
void hand_back(Side& side, int fd, Reason reason) noexcept;

// All connections of this process, and none is accelerated from now on.
void leave_everything() noexcept;

}  // namespace farcall::preload
