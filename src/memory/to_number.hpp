// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace farcall {

// The number that all of the text is, and nothing if it is none or one that `Number` cannot hold.
template <class Number = std::uint64_t>
std::optional<Number> to_number(std::string_view text, int base = 10) noexcept {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, base);
  if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
  return number;
}

}  // namespace farcall
