// SPDX-License-Identifier: Apache-2.0
#include "compare/result.hpp"

#include <algorithm>

namespace farcall::compare {

const Result* Comparison::find(std::string_view mechanism, std::string_view wait,
                               Placement placement, std::size_t message_bytes) const {
  const auto found = std::find_if(results.begin(), results.end(), [&](const Result& result) {
    const RowInfo& info = result.row->info();
    return result.error.empty() && info.mechanism == mechanism && info.wait == wait &&
           result.placement == placement &&
           result.message_bytes == (message_bytes == 0 ? info.fixed_bytes : message_bytes);
  });
  return found == results.end() ? nullptr : &*found;
}

const Result* Comparison::control(Placement placement) const {
  return placement == Placement::one_cpu ? find("futex_pingpong", "block", placement, 0)
                                         : find("cacheline_pingpong", "spin", placement, 0);
}

bool Comparison::any_failed() const {
  return std::any_of(results.begin(), results.end(),
                     [](const Result& result) { return !result.error.empty(); });
}

}  // namespace farcall::compare
