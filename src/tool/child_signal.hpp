// SPDX-License-Identifier: Apache-2.0
//
// SIGCHLD of a caller that ignores it: then the kernel tells nobody how a child has ended, nor that
// it has.
#pragma once

namespace farcall::tool {

// Before any child is started.
void expect_children() noexcept;

// In a process that is about to become the user's program: as its caller wanted it.
void restore_child_signal() noexcept;

}  // namespace farcall::tool
