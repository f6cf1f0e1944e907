// SPDX-License-Identifier: Apache-2.0
//
// What one process may have: resource limits, and those of the control groups it is in.
#pragma once

#include <string>

#include "doctor/finding.hpp"
#include "doctor/tree.hpp"

namespace farcall::doctor {

// `pid` is a number, or "self".
void examine_limits(const Tree& tree, const std::string& pid, const std::string& about,
                    Findings& findings);
void examine_group(const Tree& tree, const std::string& pid, const std::string& about,
                   Findings& findings);

}  // namespace farcall::doctor
