// SPDX-License-Identifier: Apache-2.0
//
// dup2() onto the number of a connection that other threads may be using: each of their calls is
// either on the connection that was there or on the file that comes.
//
// The kernel's table and the library's change while both locks of the old side are held, so whoever
// has one of them knows what the number is. The old socket has a descriptor of the library's own
// meanwhile, by which it is closed afterwards as any other, without the locks.
//
// Calls of the kernel by that number are made without a lock. Where some are under way nobody knows
// which socket they have met, or will meet; so both connections are left to the kernel first, which
// alone counts their bytes from then on.
#pragma once

namespace farcall::preload {

struct Duplication {
  int from;
  int to;
  int flags;  // of dup3(); -1: dup2()
  long (*make)(int from, int to, int flags) noexcept;
};

// Carries it out, where `to` is a connection's. False: that cannot be done here.
bool replace(const Duplication& asked, long& result) noexcept;

// The file at that number has come by dup2(); it is not that somebody has closed the number.
bool was_replaced(int fd) noexcept;
void note_replaced(int fd, bool now = true) noexcept;

}  // namespace farcall::preload
