// SPDX-License-Identifier: Apache-2.0
//
// Slots whose processes carry the preload library. A library is preloaded when a program begins, so
// the client's process executes this program anew, with the plan and the memory for results as
// inherited descriptors; the server is forked from it as from any client.
#pragma once

#include "compare/slot.hpp"

namespace farcall::compare {

// In the client's process: executes the slot. Returns the exit code, after telling the board, where
// that is not possible.
int execute_slot(const SlotPlan& plan, int board, int samples, Board& errors) noexcept;

// The body of what was executed; `plan` is the descriptor of the plan. Returns the exit code.
int slot_main(int plan);

}  // namespace farcall::compare
