// SPDX-License-Identifier: Apache-2.0
//
// What `farcall doctor` finds: each finding names a cause and its cure. Whoever looks for one adds
// it to a list; nothing here prints.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace farcall::doctor {

enum class Severity : std::uint8_t {
  note,     // worth knowing; may well be meant
  warning,  // costs speed
  fault,    // something that was asked for does not work at all
};

struct Finding {
  std::string id;  // for programs; does not change: "one-processor"
  Severity severity;
  std::string about;  // "this machine", "redis-server (process 77)"
  std::string cause;  // a sentence, and so is the cure
  std::string cure;
};
using Findings = std::vector<Finding>;

const char* to_string(Severity severity) noexcept;

// Whether there is a fault or a warning among them.
bool anything_wrong(const Findings& findings) noexcept;

// The worst first; what is equally bad stays in order.
void sort_by_severity(Findings& findings);

// Those that say the same of several become one, about some of them by name and the rest by number.
void join_alike(Findings& findings);

inline constexpr const char* kThisMachine = "this machine";

}  // namespace farcall::doctor
