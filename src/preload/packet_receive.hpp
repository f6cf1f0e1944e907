// SPDX-License-Identifier: Apache-2.0
//
// What a receiving call on a socket of packets does beside one on a stream.
#pragma once

#include "preload/connection.hpp"

namespace farcall::preload {

// What the kernel has given to a call that had entered it (Receiver::enter_kernel).
enum class Came : std::uint8_t { message, end, doorbell };
// Counts it. `length` is what the call returned. Holds the receiver's lock.
Came note_message(Side& side, const Call& call, std::size_t length) noexcept;

// Sleeps in the kernel until a message comes; `guard` is that of the receiver's lock, which is free
// meanwhile. As receive_message_now(), or -1 with errno.
long sleep_for_message(Side& side, const Call& call, std::size_t& length,
                       Guard& guard) noexcept(false);

}  // namespace farcall::preload
