// SPDX-License-Identifier: Apache-2.0
//
// What the machine's part of a message costs: measured, within some ten milliseconds.
#pragma once

#include "doctor/finding.hpp"

namespace farcall::doctor {

struct Costs {
  double system_call_ns = 0;  // the cheapest there is
  double clock_ns = 0;        // one look
  double wake_up_ns = 0;      // of a thread that sleeps on another processor; 0: there is none
};

Costs measure_costs();

// A machine that is busy just now makes figures worse; so they are notes, where they do not show
// something that is broken.
void judge(const Costs& costs, Findings& findings);

}  // namespace farcall::doctor
