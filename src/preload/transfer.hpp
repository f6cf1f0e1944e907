// SPDX-License-Identifier: Apache-2.0
//
// Moves bytes between a program and one direction, be they in the ring or in the kernel, without
// ever waiting.
#pragma once

#include "preload/stream.hpp"

namespace farcall::preload {

// What came of a try: bytes (0: the end of the stream), a negative errno, or:
inline constexpr long kNothing = -100'000;

// Takes what is there, across ring and kernel, up to to.left(). Holds the receiver's lock.
long receive_now(Receiver& receiver, const Ring& ring, int fd, Span& to, bool peek) noexcept;

// Has the stream ended, or has it an error? As receive_now, for when that found nothing: asks the
// kernel, which costs a system call.
long look_for_end(Receiver& receiver, const Ring& ring, int fd) noexcept;

// Takes a doorbell out of `got` bytes that have just come from the kernel into `parts`, if it is
// among them. Returns how many bytes are the program's.
std::size_t without_doorbell(const Receiver& receiver, const Ring& ring, const iovec* parts,
                             std::size_t count, std::size_t got) noexcept;

// Sends what nobody has taken out of the ring through the kernel, as much as that takes without
// waiting; see Sender::reclaim. Holds the sender's lock. Zero, or the error of the connection as a
// negative errno, of which the kernel will not tell again.
long reclaim_now(Sender& sender, const Ring& ring, int fd, bool always) noexcept;

// sendmsg of at most `size` bytes of what is left in `span`, without waiting; negative errno.
long kernel_send(int fd, const Span& span, std::size_t size, int flags) noexcept;

// Bytes in the kernel's receive queue of `fd`; negative errno.
long kernel_queued(int fd) noexcept;

inline constexpr std::size_t kParts = 32;

}  // namespace farcall::preload
