// SPDX-License-Identifier: Apache-2.0
//
// What a call that sends waits for: room in the ring, room in the kernel, a peer that is leaving.
// All hold the sender's lock, and let go of it where they sleep.
#pragma once

#include "preload/connection.hpp"

namespace farcall::preload {

// Newer bytes must not come before those of the ring there, so these go first. False: the kernel
// has no room for all.
bool leave_ring_for_kernel(Side& side, int fd) noexcept;

// The ring is full: waits a little while the receiver makes room. Without the lock meanwhile.
bool wait_for_room(Side& side, bool briefly, Guard& guard) noexcept;

// Waits for a peer that is leaving the ring, if it is. Zero, or what the call returns.
ssize_t let_peer_leave(Side& side, const Call& call) noexcept;

// Until the kernel has room, as long as a send would wait for it, of which a part may have been
// sent. Zero, or what the call returns.
ssize_t wait_for_kernel(Side& side, const Call& call, bool part_sent, Guard& guard);

}  // namespace farcall::preload
