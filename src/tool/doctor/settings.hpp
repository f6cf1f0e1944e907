// SPDX-License-Identifier: Apache-2.0
//
// What variables of an environment make of farcall: whether they are understood, and what they
// switch off.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "doctor/connections.hpp"
#include "doctor/finding.hpp"
#include "preload/settings.hpp"
#include "preload/stats.hpp"

namespace farcall::tool::doctor {

// Words NAME=VALUE.
using Environment = std::vector<std::string>;
Environment own_environment();

void examine_environment(const Environment& environment, const std::string& about,
                         farcall::doctor::Findings& findings);

// Whether FARCALL_ENGINE asks for the kernel module.
bool wants_module(const Environment& environment);

// Of reasons.hpp.
const char* reason_id(preload::Reason reason) noexcept;

// The settings of processes, each read once.
class ProcessSettings {
 public:
  bool wants(const farcall::doctor::Process& process, const farcall::doctor::End& end);
  // Whether the one shares memory with the other.
  bool may_share(const farcall::doctor::Process& one, const farcall::doctor::Process& other);

 private:
  const preload::Settings& of(const farcall::doctor::Process& process);
  std::map<pid_t, preload::Settings> settings_;
};

}  // namespace farcall::tool::doctor
