// SPDX-License-Identifier: Apache-2.0
//
// Which processes hold which sides. One that is killed does not count itself out of those that it
// holds, so others do when they need the room.
//
// A process has its place in memory that it shares with its children, from the first child on.
// Without one, as where more live than there is room for, it is never counted out. All but
// take_childs_place() is called under one lock of the process.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace farcall::preload {

// This process has been counted as a holder of the side of that number; or is about to be counted
// out of it, or out of all.
void note_held(std::uint32_t side) noexcept;
void note_dropped(std::uint32_t side) noexcept;
void note_all_dropped() noexcept;

// Around fork(): a child is to come, which holds that side, too. In the child, whose `parent` has
// called these.
void expect_child() noexcept;
void note_held_by_child(std::uint32_t side) noexcept;
void take_childs_place(pid_t parent) noexcept;

// This process holds nothing, and has nothing to do any more with those that it knows.
void leave_holders() noexcept;

// Of each side that a process held when it ended.
void count_out_the_dead() noexcept;

}  // namespace farcall::preload
