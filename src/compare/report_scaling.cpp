// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "compare/report.hpp"
#include "compare/table_text.hpp"
#include "compare/units.hpp"

namespace farcall::compare {
namespace {

class ScalingTable : TableText {
 public:
  using TableText::TableText;

  std::string text() {
    for (const std::size_t size : comparison_.settings.sizes)
      for (const Crowd& crowd : comparison_.settings.crowds) block(size, crowd);
    return std::move(text_) + lines_of_missing(comparison_);
  }

 private:
  void block(std::size_t size, const Crowd& crowd) {
    const auto rows =
        chosen([&](const Result& one) { return one.message_bytes == size && one.crowd == crowd; },
               [](const Result& one) { return -median(one.messages_per_s); });
    if (rows.empty()) return;
    line(kBold, fmt::format("{}, {}", describe_crowd(crowd), format_size(size)));
    line(kDim, fmt::format("  {:<18} {:<8} {:>7} {:>15} {:>7} {:>7} {:>7} {:>7} {:>6} {:>5}{}", "",
                           "wait", "calls/s", "of rounds", "p50", "p99", "p99.9", "cpu", "sw",
                           "fair", crowd.idle != 0 ? kIdleHead : ""));
    for (const Result* result : rows) row(*result);
    text_ += '\n';
  }

  void row(const Result& result) {
    const RowInfo& info = result.row->info();
    if (!result.error.empty())
      return line(
          kRed, fmt::format("  {:<18} {:<8} failed: {}", info.mechanism, info.wait, result.error));
    const Percentiles times = result.rtt.percentiles();
    const auto calls = static_cast<double>(result.rtt_calls);
    const auto [least, greatest] =
        std::minmax_element(result.messages_per_s.begin(), result.messages_per_s.end());
    line(info.engine == "shared" ? kGreen : "",
         fmt::format("  {:<18} {:<8} {:>7} {:>15} {:>7} {:>7} {:>7} {:>7} {:>6} {:>5.2f}{}",
                     info.mechanism, info.wait, format_count(median(result.messages_per_s)),
                     format_count(*least) + ".." + format_count(*greatest), format_ns(times.p50),
                     format_ns(times.p99), format_ns(times.p999),
                     format_ns(static_cast<double>(result.rtt_usage.cpu_ns) / calls),
                     format_digits(static_cast<double>(result.rtt_usage.switches) / calls),
                     median(result.fairness), result.crowd.idle != 0 ? idle(result.idle) : ""));
  }

  // Of the server, and of the process that holds the other ends.
  static std::string idle(const Result::Idle& idle) {
    const auto both = [](const std::vector<double>(&values)[2], double factor) {
      return format_digits(median(values[1]) * factor) + "/" +
             format_digits(median(values[0]) * factor);
    };
    return fmt::format(" {:>12} {:>10} {:>12}", both(idle.bytes, 1.0 / 1024),
                       both(idle.descriptors, 1), both(idle.cpu, 1e6));
  }
  static constexpr std::string_view kIdleHead = "   KiB/idle     fd/idle    idle us/s";
};

}  // namespace

std::string scaling_table(const Comparison& comparison, bool colours) {
  std::string text = ScalingTable(comparison, colours).text() +
                     "calls/s: of all clients together, each calling one after another; of rounds: "
                     "the least and the\ngreatest. p50 ... p99.9: calls of all clients. cpu, sw: "
                     "processor time and context switches of all\nprocesses per call. fair: the "
                     "calls of the slowest client of those of the fastest.\n";
  if (comparison.settings.crowds.front().idle != 0)
    text +=
        "Per idle connection, of the server / of the other end: memory that the processes have, "
        "and\ndescriptors; processor time per second while nobody calls.\n";
  return text;
}

}  // namespace farcall::compare
