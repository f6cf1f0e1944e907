// SPDX-License-Identifier: Apache-2.0
//
// Receiving calls that the kernel serves as it would without this library: of sides without a ring,
// and where nothing is gained by looking at one.
#pragma once

#include "preload/connection.hpp"

namespace farcall::preload {

// A call of the program has brought so many bytes from the kernel. How many of them are its own;
// none: look again. Holds the receiver's lock.
std::size_t came_from_kernel(Side& side, const Call& call, const iovec* parts, std::size_t count,
                             std::size_t raw) noexcept;

// `guard` is that of the receiver's lock, which is free meanwhile. kNothing: look again.
ssize_t receive_plainly(Side& side, const Call& call, Guard& guard) noexcept(false);

// Whether the program's own call does all that is to be done: the direction is watched, nothing is
// in the ring, and others compete for the processor, so it is watched for most of the time. A look
// at what is there, made before, would only cost another system call.
bool is_left_to_kernel(Side& side, const Call& call) noexcept;
// Then; likewise. kNothing: it does not, the lock is held, and the side is there still.
ssize_t receive_directly(Side& side, const Call& call, Guard& guard) noexcept(false);

// Beyond an urgent byte no call reads on that has read something.
bool is_at_urgent_byte(const Side& side, int fd) noexcept;

}  // namespace farcall::preload
