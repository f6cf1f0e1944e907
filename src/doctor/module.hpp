// SPDX-License-Identifier: Apache-2.0
//
// The kernel module stplr: whether it is there, may be used, and is of this version.
#pragma once

#include "doctor/finding.hpp"
#include "doctor/tree.hpp"

namespace farcall::doctor {

struct Module {
  bool loaded = false;
  int error = 0;           // errno of opening /dev/stplr
  unsigned interface = 0;  // its version; 0: not known
};

Module look_at_module(const Tree& tree);

// `wanted`: FARCALL_ENGINE asks for it.
void judge(const Module& module, bool wanted, Findings& findings);

}  // namespace farcall::doctor
