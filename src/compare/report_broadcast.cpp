// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "compare/report.hpp"
#include "compare/table_text.hpp"
#include "compare/units.hpp"

namespace farcall::compare {
namespace {

class BroadcastTable : TableText {
 public:
  using TableText::TableText;

  std::string text() {
    for (const std::size_t size : comparison_.settings.sizes)
      for (const unsigned readers : comparison_.settings.readers) block(size, readers);
    return std::move(text_) + lines_of_missing(comparison_);
  }

 private:
  void block(std::size_t size, unsigned readers) {
    const auto rows = chosen(
        [&](const Result& one) { return one.message_bytes == size && one.readers == readers; },
        [](const Result& one) { return one.rtt.p50(); });
    if (rows.empty()) return;
    line(kBold, fmt::format("1 writer, {} reader{}, {}", readers, readers == 1 ? "" : "s",
                            format_size(size)));
    line(kDim, fmt::format("  {:<20} {:<8} {:<9} {:>7} {:>7} {:>7} {:>17} {:>7} {:>7} {:>9} {:>6}",
                           "", "wait", "slow", "p50", "p99", "max", "p50 of rounds", "cpu", "sw",
                           "msg/s", "missed"));
    for (const Result* result : rows) row(*result);
    text_ += '\n';
  }

  void row(const Result& result) {
    const RowInfo& info = result.row->info();
    const std::string name = info.mechanism + (result.fragmented ? "*" : "");
    if (!result.error.empty())
      return line(kRed, fmt::format("  {:<20} {:<8} failed: {}", name, info.wait, result.error));
    const Percentiles round = result.rtt.percentiles();
    const auto rounds = static_cast<double>(result.rtt_calls);
    line(info.mechanism.starts_with("broadcast") ? kGreen : "",
         fmt::format(
             "  {:<20} {:<8} {:<9} {:>7} {:>7} {:>7} {:>17} {:>7} {:>7} {:>9} {:>6}", name,
             info.wait, info.policy, format_ns(round.p50), format_ns(round.p99),
             format_ns(round.max),
             fmt::format("{}..{}", format_ns(result.rtt.least_median()),
                         format_ns(result.rtt.greatest_median())),
             format_ns(static_cast<double>(result.rtt_usage.cpu_ns) / rounds),
             format_digits(static_cast<double>(result.rtt_usage.switches) / rounds),
             format_count(median(result.messages_per_s)),
             info.policy == "block" ? "-" : fmt::format("{:.1f} %", 100 * median(result.missed))));
  }
};

}  // namespace

std::string broadcast_table(const Comparison& comparison, bool colours) {
  return BroadcastTable(comparison, colours).text() +
         "slow: what becomes of a slow reader: the writer waits for it (block), or it misses what "
         "is\nold (overwrite) or new (drop). p50 ... max: a round: the writer tells all, and each "
         "answers\nthrough a ring of its own. cpu, sw: processor time and context switches of all "
         "processes per\nround. msg/s: what the slowest reader receives of a stream; missed: of "
         "that stream, by whom\nmisses most.\n";
}

}  // namespace farcall::compare
