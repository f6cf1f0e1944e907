// SPDX-License-Identifier: Apache-2.0
//
// Flows as lines of text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "watch/flows.hpp"

namespace farcall::tool::top {

enum class Sort : std::uint8_t { messages, bytes, kernel, latency, spin, wait, kind, name, count_ };
const char* to_text(Sort sort) noexcept;
// count_ for what is none.
Sort sort_of(const std::string& text) noexcept;

struct View {
  Sort sort = Sort::messages;
  bool reversed = false;
  std::string filter;
};

// 0 to 99999, then 12.3k, 45M and so on: at most five characters.
std::string short_number(double value);
// 85 ns as "85n", "1.2u", "3.4m", "12s"; "-" for 0.
std::string short_time(std::uint64_t ns);

// The same as "85 ns", "1.2 us", "no time".
std::string spelled_time(std::uint64_t ns);

struct Line {
  std::string text;
  bool waits = false;
  bool by_kernel = false;
};
// The header, and a line for each flow that the filter lets through, sorted. Columns that the width
// has no room for are left out, the least important first.
std::string header(unsigned width, const View& view);
std::vector<Line> lines(const watch::Flows& flows, unsigned width, const View& view);

}  // namespace farcall::tool::top
