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

// Puts what fits into the ring or, without waiting, into the kernel. kNothing: nothing fits now.
// Holds the sender's lock. `flags` are those of send().
long send_now(Sender& sender, const Ring& ring, int fd, Span& from, int flags) noexcept;

// Takes a doorbell out of `got` bytes that have just come from the kernel into `parts`, if it is
// among them. Returns how many bytes are the program's.
std::size_t without_doorbell(const Receiver& receiver, const Ring& ring, const iovec* parts,
                             std::size_t count, std::size_t got) noexcept;

// If the receiver has asked for it, sends the bytes of the ring again, by the kernel. Holds the
// sender's lock; waits for room in the kernel where there is none.
void answer_recall(Sender& sender, const Ring& ring, int fd) noexcept;

// Bytes in the kernel's receive queue of `fd`; negative errno.
long kernel_queued(int fd) noexcept;

inline constexpr std::size_t kParts = 32;

}  // namespace farcall::preload
