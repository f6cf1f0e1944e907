// SPDX-License-Identifier: Apache-2.0
//
// Giving a connection back to the kernel for good, where the library cannot follow it.
//
// What the leaving end has sent is taken back out of the ring and sent through the kernel. What it
// has received and its program has not read must come again by the kernel's stream, and nobody but
// the peer can send there. So:
//
//   leaving end                                 peer
//     asked                                       sends nothing more; a send in progress ends
//     reads ring and kernel into own memory
//     given: bytes, in the ring's memory          serving: sends them through the kernel
//     (again, until all are gone)                 served
//     done                                        goes on through the kernel alone
//
// A peer that sleeps is woken by one byte in the kernel, which its library takes out again
// (doorbell). One that is stopped or does not call the library is not waited for: where the kernel
// permits it (pidfd_getfd) the leaving end borrows the peer's socket and sends the bytes itself. If
// neither is possible the connection is reset: both ends see that, and no byte is lost unnoticed.
#pragma once

#include "preload/side.hpp"

namespace farcall::preload {

// From here on every byte of this connection is the kernel's. Returns when whoever reads the
// descriptor without the library finds there what it expects.
void hand_back(Side& side, int fd, Reason reason) noexcept;

// The other role. If the peer is leaving and has given bytes back, sends them, as many as the
// kernel takes without waiting. True if the peer is not, or no longer, in the middle of leaving.
// Holds the sender's lock.
bool serve_leaving_peer(Side& side, int fd) noexcept;
// The same on account of its doorbell, with no lock of the sender's.
void answer_leaving_peer(Side& side, int fd) noexcept;
// As serve_leaving_peer(), until it is true, or for so many nanoseconds; if the peer takes too long
// in all the connection is reset. Holds the sender's lock.
enum class Left : std::uint8_t { yes, not_yet, interrupted };
Left await_leaving_peer(Side& side, int fd, std::int64_t longest) noexcept;
// The same by who must not wait: a moment in all, however often it is asked. False: it still is.
bool bear_with_leaving_peer(Side& side, int fd) noexcept;
// Takes the peer's doorbell out of the kernel, if it is the next byte and nothing is in the ring.
// Holds the receiver's lock.
void take_doorbell(Side& side, int fd) noexcept;
// The same for who has been told that there is something to read: serves the peer, too. True if
// there was a doorbell, beside which there may be nothing. Takes the lock.
bool take_doorbell_told(Side& side, int fd) noexcept;
// The same, of a side that has said that it closes: none comes afterwards. Holds the receiver's
// lock.
void take_last_doorbell(Side& side, int fd) noexcept;
// Before this end closes, shuts down or leaves: all that it has sent is the kernel's. Holds the
// sender's lock. Where the connection goes on by the kernel, a peer that is leaving as well has its
// time, however much of it others have wasted.
void send_last_bytes(Side& side, int fd, bool goes_on = false) noexcept;

}  // namespace farcall::preload
