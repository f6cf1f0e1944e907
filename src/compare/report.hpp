// SPDX-License-Identifier: Apache-2.0
//
// The ways to tell what a comparison has found out.
#pragma once

#include <string>
#include <vector>

#include "compare/machine.hpp"
#include "compare/result.hpp"

namespace farcall::compare {

// The machine-readable report; `docs/man/man1/farcall-compare.1` describes it.
std::string report_json(const Comparison& comparison, const Machine& machine);

// Tables for a terminal of 100 columns or more, one per placement and size.
std::string report_table(const Comparison& comparison, const Machine& machine, bool colours);

// The tables of broadcasts, one per size and number of readers, without what report_table() tells
// of the machine.
std::string broadcast_table(const Comparison& comparison, bool colours);

// The same of many clients, one per size and number of them.
std::string scaling_table(const Comparison& comparison, bool colours);

// The same of clients whose servers are killed, one per placement and size.
std::string dead_peer_table(const Comparison& comparison, bool colours);

// A line of a table for each row that is absent or was skipped, for workloads of one placement.
std::string lines_of_missing(const Comparison& comparison);

// What one line of the tables says of it, without its end.
std::string line_of(const Skipped& skipped);

// Why there is no result at all: what was skipped or is absent, and the reason.
std::string why_nothing(const Comparison& comparison);

// What the figures mean here, in up to three sentences: the fastest, what common
// ways cost and why, and what that makes of throughput. Sentences whose rows were not measured
// are left out.
std::vector<std::string> explain(const Comparison& comparison);

}  // namespace farcall::compare
