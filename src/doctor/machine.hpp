// SPDX-License-Identifier: Apache-2.0
//
// What of the machine makes messages between processes slow: its processors, its clock, what its
// kernel does on the way in and out, who else wants the processors.
#pragma once

#include "doctor/finding.hpp"
#include "doctor/tree.hpp"

namespace farcall::doctor {

// `own`: it is about this process, too, and counts where that may run.
void examine_machine(const Tree& tree, bool own, Findings& findings);

// Settings of the whole system: limits under /proc/sys, what is preloaded everywhere.
void examine_system(const Tree& tree, Findings& findings);

}  // namespace farcall::doctor
