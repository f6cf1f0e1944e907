// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "compare/report.hpp"
#include "compare/table_text.hpp"
#include "compare/units.hpp"

namespace farcall::compare {
namespace {

class PlainTable : TableText {
 public:
  using TableText::TableText;

  std::string text() {
    for (const Placement placement : comparison_.settings.placements)
      for (const std::size_t size : comparison_.settings.sizes)
        block(placement, size, size == comparison_.settings.sizes.front());
    return std::move(text_) + lines_of_missing(comparison_);
  }

 private:
  // The rows of one placement and size; in the first also the controls that have no size.
  void block(Placement placement, std::size_t size, bool first) {
    const auto rows = chosen(
        [&](const Result& one) {
          return one.placement == placement &&
                 (one.row->info().fixed_bytes != 0 ? first : one.message_bytes == size);
        },
        [](const Result& one) { return one.rtt.p50(); });
    if (rows.empty()) return;
    const Result* control = comparison_.control(placement);
    line(kBold, fmt::format("{}, {}", to_string(placement), format_size(size)) +
                    (control == nullptr
                         ? ""
                         : fmt::format("   (x: times {}, {})", control->row->info().mechanism,
                                       format_ns(control->rtt.p50()))));
    line(kDim, fmt::format("  {:<18} {:<8} {:>7} {:>7} {:>7} {:>7} {:>6} {:>7} {:>9} {:>7} "
                           "{:>7} {:>5} {:>5}",
                           "", "wait", "p50", "p99", "p99.9", "max", "x", "msg/s", "bytes/s",
                           "wake-up", "cpu/msg", "sys", "sw"));
    for (const Result* result : rows) row(*result, control);
    text_ += '\n';
  }

  void row(const Result& result, const Result* control) {
    const RowInfo& info = result.row->info();
    const std::string name = info.mechanism + (result.fragmented ? "*" : "");
    if (!result.error.empty())
      return line(kRed, fmt::format("  {:<18} {:<8} failed: {}", name, info.wait, result.error));
    const Percentiles rtt = result.rtt.percentiles();
    const double rate = median(result.messages_per_s);
    line(
        result.is_control()        ? kDim
        : info.mechanism == "ring" ? kGreen
                                   : "",
        fmt::format(
            "  {:<18} {:<8} {:>7} {:>7} {:>7} {:>7} {:>6} {:>7} {:>9} {:>7} {:>7} {:>5} {:>5}",
            name, info.wait, format_ns(rtt.p50), format_ns(rtt.p99), format_ns(rtt.p999),
            format_ns(rtt.max),
            control == nullptr ? "" : format_digits(rtt.p50 / control->rtt.p50()),
            format_count(rate), format_rate(rate * static_cast<double>(result.message_bytes)),
            result.wakeup_ns.empty() ? "" : format_ns(median(result.wakeup_ns)),
            format_ns(result.cpu_s_per_million() * 1e3),
            result.system_calls_per_message ? format_digits(*result.system_calls_per_message) : "?",
            format_digits(result.switches_per_message())));
  }
};

bool any_fragmented(const Comparison& comparison) {
  return std::any_of(comparison.results.begin(), comparison.results.end(),
                     [](const Result& result) { return result.fragmented; });
}

}  // namespace

std::string line_of(const Skipped& skipped) {
  std::string what = skipped.mechanism;
  const auto add = [&](const std::string& word) {
    if (!word.empty()) what += (what.empty() ? "" : ", ") + word;
  };
  add(skipped.placement);
  if (skipped.message_bytes) add(format_size(*skipped.message_bytes));
  return fmt::format("{}: {}", what, skipped.reason);
}

std::string why_nothing(const Comparison& comparison) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> reasons;
  for (const Skipped& one : comparison.skipped) reasons.push_back(line_of(one));
  for (const AbsentRow& row : comparison.absent)
    reasons.push_back(fmt::format("{}: {}", row.mechanism, row.reason));
  if (reasons.empty()) return "no row is chosen";
  std::string text;
  for (std::size_t i = 0; i < std::min(reasons.size(), kMost); ++i)
    text += (i == 0 ? "" : "; ") + reasons[i];
  if (reasons.size() > kMost) text += fmt::format("; and {} more", reasons.size() - kMost);
  return text;
}

std::string lines_of_missing(const Comparison& comparison) {
  std::string text;
  for (const AbsentRow& row : comparison.absent)
    text += fmt::format("absent: {}: {}\n", row.mechanism, row.reason);
  for (const Skipped& one : comparison.skipped) text += fmt::format("skipped: {}\n", line_of(one));
  return text;
}

std::string report_table(const Comparison& comparison, const Machine& machine, bool colours) {
  std::string text = fmt::format(
      "{}, {} processors{}, Linux {}{}\n{}\n", machine.cpu, machine.processors,
      machine.siblings ? " (the two used share a core)" : "", machine.kernel,
      machine.virtualization == "none" ? "" : ", in a virtual machine",
      fmt::format("{} round{}, {:.0f} s; one look at the clock, {}, is part of each sample\n",
                  comparison.settings.effort.rounds,
                  comparison.settings.effort.rounds == 1 ? "" : "s", comparison.seconds,
                  format_ns(machine.timer_ns)));
  if (comparison.settings.is_broadcast()) return text + broadcast_table(comparison, colours);
  if (comparison.settings.is_scaling()) return text + scaling_table(comparison, colours);
  if (comparison.settings.dead_peer) return text + dead_peer_table(comparison, colours);
  text += PlainTable(comparison, colours).text();
  text +=
      "p50 ... max: a message there and its answer back, real samples. msg/s, bytes/s: one way,\n"
      "or calls one after another where a mechanism has nothing else.\n"
      "wake-up: a round trip after 20 ms of silence. cpu/msg: processor time of both sides, and of "
      "a\n"
      "daemon between them, per message. sys, sw: system calls (counted in a pass of their own) "
      "and\n"
      "context switches per message. Rows that spin cost a processor while they wait.\n";
  if (any_fragmented(comparison))
    text += "*: longer than the mechanism's longest message, so each travels in several.\n";
  return text;
}

}  // namespace farcall::compare
