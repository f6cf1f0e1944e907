// SPDX-License-Identifier: Apache-2.0
//
// Figures as people read them: three significant digits and a unit that fits.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "compare/row.hpp"

namespace farcall::compare {

std::string format_ns(double ns);             // "1.94 ns", "293 ns", "55.1 us", "3.20 ms"
std::string format_count(double count);       // "812", "1.73 M"
std::string format_rate(double bytes_per_s);  // "7.10 GB/s", powers of ten
std::string format_size(std::size_t bytes);   // "64 B", "64 KiB", powers of two
std::string format_digits(double value);      // "0.45", "12.3", "280", at most 4 characters

std::string describe_crowd(const Crowd& crowd);  // "4 clients, 1 server", "4 pairs"

// "8", "1K", "64KiB", "16M"; std::nullopt if it is no size.
std::optional<std::size_t> parse_size(std::string_view text);

// Words, each ended by a 0 as in /proc/PID/cmdline, as a line that a shell makes the same words of.
std::string shell_line(std::string_view words);

}  // namespace farcall::compare
