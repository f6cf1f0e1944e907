// SPDX-License-Identifier: Apache-2.0
//
// Room for what a program sends: in the ring, or in the kernel where the ring is left. All hold the
// sender's lock.
#pragma once

#include "preload/connection.hpp"

namespace farcall::preload {

// Newer bytes must not come before those of the ring there, so these go first. False: the kernel
// has no room for all.
bool leave_ring_for_kernel(Side& side, int fd) noexcept;
// The ring is full: waits a little while the receiver makes room. Without the lock meanwhile.
bool wait_for_room(Side& side, bool briefly, Guard& guard) noexcept;
// The program is told that there is no room. Where that is not the kernel's word nobody would be
// told when there is some again; so the kernel is made to tell at once, and the program asks again.
ssize_t no_room(const Side& side, int fd) noexcept;

}  // namespace farcall::preload
