// SPDX-License-Identifier: Apache-2.0
//
// What has passed, as top and stat write it in JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "watch/process.hpp"
#include "watch/text.hpp"

namespace farcall::tool::top {

// `passed` is a watch::Passed, or a half of an end.
template <class P>
nlohmann::json passed_json(const P& passed) {
  return {{"messages", passed.messages},
          {"bytes", passed.bytes},
          {"kernel_messages", passed.kernel_messages},
          {"kernel_bytes", passed.kernel_bytes}};
}

inline nlohmann::json closed_json(const watch::Process& process) {
  nlohmann::json all = nlohmann::json::array();
  for (const watch::Closed& closed : process.closed)
    all.push_back({{"kind", watch::to_text(closed.kind)},
                   {"ends", closed.ends},
                   {"sent", passed_json(closed.sent)},
                   {"received", passed_json(closed.received)}});
  return all;
}

}  // namespace farcall::tool::top
