// SPDX-License-Identifier: Apache-2.0
//
// What the kernel lets a process do that farcall rests on. A sandbox may refuse a system call, or
// kill whoever makes it; so each is tried in a child that makes that one alone.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "doctor/finding.hpp"

namespace farcall::doctor {

struct Ability {
  const char* id;
  Severity severity;  // of its absence
  const char* what;   // a system call
  const char* harm;   // without it
  const char* cure;   // where that is not to permit it
};

struct Refusal {
  Ability ability;
  int error;   // errno; 0: it was killed
  int signal;  // by which it was killed
};

// Those that this process does not have.
std::vector<Refusal> try_abilities();

void judge(const std::vector<Refusal>& refusals, Findings& findings);

}  // namespace farcall::doctor
