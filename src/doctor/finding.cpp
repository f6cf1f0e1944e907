// SPDX-License-Identifier: Apache-2.0
#include "doctor/finding.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>

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

void join_alike(Findings& findings) {
  constexpr std::size_t kNamed = 4;
  struct Joined {
    std::size_t place;
    std::size_t count;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Joined> known;
  Findings joined;
  for (Finding& finding : findings) {
    const auto [at, fresh] =
        known.try_emplace({finding.id, finding.cause, finding.cure}, Joined{joined.size(), 0});
    ++at->second.count;
    if (fresh)
      joined.push_back(std::move(finding));
    else if (at->second.count <= kNamed)
      joined[at->second.place].about += "; " + finding.about;
  }
  for (const auto& [key, one] : known)
    if (one.count > kNamed)
      joined[one.place].about += "; and " + std::to_string(one.count - kNamed) + " more";
  findings = std::move(joined);
}

}  // namespace farcall::doctor
