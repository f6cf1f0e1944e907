// SPDX-License-Identifier: Apache-2.0
//
// How reports on a terminal set things off.
#pragma once

#include <string>
#include <string_view>

namespace farcall::compare {

inline constexpr std::string_view kBold = "\033[1m";
inline constexpr std::string_view kDim = "\033[2m";
inline constexpr std::string_view kGreen = "\033[32m";
inline constexpr std::string_view kRed = "\033[31m";
inline constexpr std::string_view kPlain = "\033[0m";

inline std::string coloured_line(bool colours, std::string_view colour, std::string_view text) {
  const bool plain = !colours || colour.empty();
  return plain ? std::string(text) + '\n'
               : std::string(colour) + std::string(text) + std::string(kPlain) + '\n';
}

}  // namespace farcall::compare
