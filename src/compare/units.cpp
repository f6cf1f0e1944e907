// SPDX-License-Identifier: Apache-2.0
#include "compare/units.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace farcall::compare {
namespace {

struct Unit {
  double factor;
  std::string_view name;
};

// The first unit in which the value, rounded to three digits, is below a thousand.
std::string with_unit(double value, std::span<const Unit> units) {
  const Unit* unit = &units.front();
  for (const Unit& candidate : units) {
    unit = &candidate;
    if (std::abs(value / candidate.factor) < 999.5) break;
  }
  const std::string digits = format_digits(value / unit->factor);
  return unit->name.empty() ? digits : fmt::format("{} {}", digits, unit->name);
}

}  // namespace

std::string format_digits(double value) {
  const double size = std::abs(value);
  if (size >= 99.95 || size == 0) return fmt::format("{:.0f}", value);
  if (size >= 9.995) return fmt::format("{:.1f}", value);
  return fmt::format("{:.2f}", value);
}

std::string format_ns(double ns) {
  static constexpr std::array<Unit, 4> kUnits{{{1, "ns"}, {1e3, "us"}, {1e6, "ms"}, {1e9, "s"}}};
  return with_unit(ns, kUnits);
}

std::string format_count(double count) {
  static constexpr std::array<Unit, 4> kUnits{{{1, ""}, {1e3, "k"}, {1e6, "M"}, {1e9, "G"}}};
  return with_unit(count, kUnits);
}

std::string format_rate(double bytes_per_s) {
  static constexpr std::array<Unit, 4> kUnits{
      {{1, "B/s"}, {1e3, "kB/s"}, {1e6, "MB/s"}, {1e9, "GB/s"}}};
  return with_unit(bytes_per_s, kUnits);
}

std::string format_size(std::size_t bytes) {
  if (bytes >= 1 << 20 && bytes % (1 << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= 1 << 10 && bytes % (1 << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

std::string describe_crowd(const Crowd& crowd) {
  const char* const plural = crowd.clients == 1 ? "" : "s";
  if (crowd.idle != 0)
    return fmt::format("1 client among {} idle connections, 1 server", crowd.idle);
  if (crowd.servers > 1) return fmt::format("{} pairs", crowd.clients);
  return fmt::format("{} client{}, 1 server", crowd.clients, plural);
}

std::optional<std::size_t> parse_size(std::string_view text) {
  std::size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  unsigned shift = 0;
  if (unit == "K" || unit == "k" || unit == "KiB") {
    shift = 10;
  } else if (unit == "M" || unit == "MiB") {
    shift = 20;
  } else if (unit == "G" || unit == "GiB") {
    shift = 30;
  } else if (!unit.empty() && unit != "B") {
    return std::nullopt;
  }
  constexpr std::size_t kMost = std::size_t{1} << 40;
  if (number > kMost >> shift) return std::nullopt;
  return number << shift;
}

std::string shell_line(std::string_view words) {
  constexpr std::string_view kAsIs =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";
  std::string line;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find('\0'));
    words.remove_prefix(std::min(word.size() + 1, words.size()));
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(kAsIs) == std::string_view::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) {
      if (c == '\'')
        line += "'\\''";
      else
        line += c;
    }
    line += '\'';
  }
  return line;
}

}  // namespace farcall::compare
