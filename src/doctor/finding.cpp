// SPDX-License-Identifier: Apache-2.0
#include "doctor/finding.hpp"

#include <algorithm>

namespace farcall::doctor {

const char* to_string(Severity severity) noexcept {
  switch (severity) {
    case Severity::note: return "note";
    case Severity::warning: return "warning";
    case Severity::fault: return "fault";
  }
  return "unknown";
}

bool anything_wrong(const Findings& findings) noexcept {
  return std::ranges::any_of(
      findings, [](const Finding& finding) { return finding.severity != Severity::note; });
}

void sort_by_severity(Findings& findings) {
  std::ranges::stable_sort(findings, std::ranges::greater{}, &Finding::severity);
}

}  // namespace farcall::doctor
