// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace farcall::tool {

// To standard error, which may be closed or full: then nobody hears it, and the command goes on.
template <class... Values>
void say(fmt::format_string<Values...> text, Values&&... values) {
  const std::string said = fmt::format(text, std::forward<Values>(values)...);
  (void)std::fwrite(said.data(), 1, said.size(), stderr);
}

}  // namespace farcall::tool
