// SPDX-License-Identifier: Apache-2.0
//
// What `farcall doctor` has found, for people and for programs.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/connections.hpp"
#include "doctor/finding.hpp"

namespace farcall::tool::doctor {

struct Report {
  std::string target;                                                   // what it is about
  std::optional<std::vector<farcall::doctor::Connection>> connections;  // of a process
  farcall::doctor::Findings findings;
};

// To be printed: no control character of anybody's is in it.
std::string to_text(const Report& report);
std::string to_json(const Report& report);

}  // namespace farcall::tool::doctor
