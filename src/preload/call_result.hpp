// SPDX-License-Identifier: Apache-2.0
//
// What a call on an accelerated stream returns; for those who carry it out.
#pragma once

#include <cerrno>

#include "preload/connection.hpp"
#include "preload/observed.hpp"

namespace farcall::preload {

inline ssize_t fail(long negative_errno) noexcept {
  errno = static_cast<int>(-negative_errno);
  return -1;
}

inline bool nonblocking(const Side& side, int flags) noexcept {
  return (flags & MSG_DONTWAIT) != 0 || side.nonblocking.load(std::memory_order_relaxed);
}

// Whether a wait is over: a call of which a part is done never starts again.
inline bool ends_wait(Interruption came, bool part_done) noexcept {
  return came == Interruption::ends || (part_done && came == Interruption::restarts);
}
// SO_RCVTIMEO or SO_SNDTIMEO, in ns; 0: none.
std::int64_t time_limit(int fd, int option) noexcept;
// The same of a call that receives: the kernel starts none again that has a time limit.
inline bool ends_receive(int fd, Interruption came, bool part_done) noexcept {
  return ends_wait(came, part_done) ||
         (came == Interruption::restarts && time_limit(fd, SO_RCVTIMEO) != 0);
}
// Sleeps until the kernel has `events`, for the rest of a call of which a part is done. False, with
// errno: a signal came, or the time limit of the socket is over.
bool sleep_for_rest(const Call& call, short events) noexcept(false);

// Somebody has closed it while a call was without the lock: the connection, or the last descriptor
// of it in this process.
inline bool is_gone(const Side& side, std::uint32_t generation) noexcept {
  return side.generation.load(std::memory_order_relaxed) != generation ||
         (side.accelerated() && side.out().control == nullptr);
}

// Between the look at the descriptor and the lock it has been closed, and the number may be another
// file's; or the connection goes on without the library. To be asked for once the lock is held: a
// side that is found then is not freed before the lock is released.
inline bool is_elsewhere(const Side& side, const Call& call) noexcept {
  return find_side(call.fd) != &side;
}
// What such a call returns: what the program's own does, unless that were another connection's
// business, which has not been prepared for it.
ssize_t call_elsewhere(const Call& call, Guard& guard) noexcept(false);

// What comes through the ring is copied, but where a stream's bytes are to be thrown away there is
// no place for it. Who calls cannot tell without the lock: another thread may accelerate it.
inline bool throws_away(const Side& side, const Call& call) noexcept {
  return (call.flags & MSG_TRUNC) != 0 && side.kind == Kind::tcp &&
         (call.flags & (MSG_OOB | MSG_ERRQUEUE)) == 0 && side.in().control != nullptr &&
         !side.receiver.has_left();
}

// Holds the receiver's lock.
ssize_t at_end(Side& side, int fd, ssize_t result) noexcept;

// A peer that breaks the protocol is dead to us, and we to it.
ssize_t broken(Side& side, int fd) noexcept;

// Whether there is something to read, in the ring or in the kernel. Holds the receiver's lock.
bool has_bytes(Side& side, int fd) noexcept;

}  // namespace farcall::preload
