// SPDX-License-Identifier: Apache-2.0
//
// Where the two ends of a conversation may run: whether at the same time, and how far apart.
#pragma once

#include "doctor/finding.hpp"
#include "doctor/process.hpp"
#include "doctor/tree.hpp"

namespace farcall::doctor {

void judge_placement(const Tree& tree, const Process& one, const Process& other,
                     Findings& findings);

}  // namespace farcall::doctor
