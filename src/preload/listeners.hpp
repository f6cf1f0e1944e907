// SPDX-License-Identifier: Apache-2.0
//
// How many connections may listen for their peers at a time, and which. Each costs a descriptor,
// and those that a process may have are its program's: a few are borrowed while there are many, and
// given back when the program comes to need them.
#pragma once

#include "preload/side.hpp"

namespace farcall::preload {

// Whether it is worth the making of a socket to try.
bool may_join_listeners() noexcept;
// Whether one more may listen: `fd` has just been made for it, and tells how many there are. Ends
// the listening of one that has waited long, if it must. Then the side has a place, until
// leave_listeners().
bool join_listeners(Side& side, int fd) noexcept;
void leave_listeners(Side& side) noexcept;

// The program has a new descriptor: where it comes to have many, nobody listens any more.
void make_way_for(int fd) noexcept;
// It could have no more. True if it can now.
bool make_way() noexcept;

// A child has none of its parent's.
void forget_listeners() noexcept;

}  // namespace farcall::preload
