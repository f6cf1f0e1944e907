// SPDX-License-Identifier: Apache-2.0
//
// What a receiving call on a socket of packets does beside one on a stream.
#pragma once

#include <algorithm>

#include "preload/connection.hpp"

namespace farcall::preload {

// What a call returns for a message of that length.
inline ssize_t message_result(const Call& call, std::size_t length) noexcept {
  const std::size_t room = Span(call.parts, call.count).left();
  return static_cast<ssize_t>((call.flags & MSG_TRUNC) != 0 ? length : std::min(length, room));
}

// Sleeps in the kernel until a message comes; `guard` is that of the receiver's lock, which is free
// meanwhile. As receive_message_now(), or -1 with errno.
long sleep_for_message(Side& side, const Call& call, std::size_t& length,
                       Guard& guard) noexcept(false);

// The same for a side without a ring; what the call returns, or kNothing.
ssize_t receive_message_plainly(Side& side, const Call& call, Guard& guard) noexcept(false);

}  // namespace farcall::preload
