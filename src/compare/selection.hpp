// SPDX-License-Identifier: Apache-2.0
//
// Which rows a user asks for: names, groups of names, ways of waiting.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "compare/placement.hpp"
#include "compare/row.hpp"

namespace farcall::compare {

// The command line asks for something that does not exist; what() says what does.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Selection {
  std::vector<const Row*> rows;
  std::vector<AbsentRow> absent;  // asked for, but not here
};

// `names` are rows or groups: all, main, controls, channels, shared, linux, kernel, peers. `waits`
// chooses among the rows of mechanisms that have several; empty: all. Throws UsageError.
Selection select_rows(const RowList& list, const std::vector<std::string>& names,
                      const std::vector<std::string>& waits);

// Throw UsageError.
std::vector<std::size_t> parse_sizes(const std::vector<std::string>& texts);
std::vector<Placement> parse_placements(const std::vector<std::string>& texts);
std::vector<unsigned> parse_readers(const std::vector<std::string>& texts);
// How many clients one server has, and how many pairs there are beside each other. One pair is one
// client of one server, and is in the list once.
std::vector<Crowd> parse_crowds(const std::vector<std::string>& clients,
                                const std::vector<std::string>& pairs);
Workload parse_workload(const std::string& text);

}  // namespace farcall::compare
