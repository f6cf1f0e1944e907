// SPDX-License-Identifier: Apache-2.0
//
// Why a connection is not accelerated, and what can be done: those that the preload library counts,
// and those that show from outside.
#pragma once

#include <string_view>

#include "doctor/finding.hpp"

namespace farcall::doctor {

struct Reason {
  const char* id;
  Severity severity;
  const char* cause;  // sentences
  const char* cure;
};

// Throws std::logic_error where there is none of that name.
const Reason& reason(std::string_view id);

}  // namespace farcall::doctor
