// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "compare/colours.hpp"
#include "compare/report.hpp"
#include "compare/units.hpp"

namespace farcall::compare {
namespace {

class Table {
 public:
  Table(const Comparison& comparison, bool colours) : comparison_(comparison), colours_(colours) {}

  std::string text() {
    for (const Placement placement : comparison_.settings.placements)
      for (const std::size_t size : comparison_.settings.sizes)
        block(placement, size, size == comparison_.settings.sizes.front());
    for (const AbsentRow& row : comparison_.absent)
      text_ += fmt::format("absent: {}: {}\n", row.mechanism, row.reason);
    for (const Skipped& one : comparison_.skipped) skipped(one);
    return std::move(text_);
  }

 private:
  void coloured(std::string_view colour, std::string_view text) {
    text_ += colours_ ? fmt::format("{}{}{}", colour, text, kPlain) : std::string(text);
  }

  // The rows of one placement and size; in the first also the controls that have no size.
  void block(Placement placement, std::size_t size, bool first) {
    std::vector<const Result*> rows;
    for (const Result& result : comparison_.results)
      if (result.placement == placement &&
          (result.row->info().fixed_bytes != 0 ? first : result.message_bytes == size))
        rows.push_back(&result);
    if (rows.empty()) return;
    std::stable_sort(rows.begin(), rows.end(), [](const Result* a, const Result* b) {
      if (a->error.empty() != b->error.empty()) return a->error.empty();
      return a->rtt.p50() < b->rtt.p50();
    });
    const Result* control = comparison_.control(placement);
    coloured(kBold, fmt::format("{}, {}", to_string(placement), format_size(size)));
    text_ += control == nullptr
                 ? "\n"
                 : fmt::format("   (x: times {}, {})\n", control->row->info().mechanism,
                               format_ns(control->rtt.p50()));
    coloured(kDim, fmt::format("  {:<18} {:<8} {:>7} {:>7} {:>7} {:>7} {:>6} {:>7} {:>9} {:>7} "
                               "{:>7} {:>5} {:>5}",
                               "", "wait", "p50", "p99", "p99.9", "max", "x", "msg/s", "bytes/s",
                               "wake-up", "cpu/msg", "sys", "sw"));
    text_ += '\n';
    for (const Result* result : rows) row(*result, control);
    text_ += '\n';
  }

  void row(const Result& result, const Result* control) {
    const RowInfo& info = result.row->info();
    const std::string name = info.mechanism + (result.fragmented ? "*" : "");
    if (!result.error.empty()) {
      text_ += fmt::format("  {:<18} {:<8} ", name, info.wait);
      coloured(kRed, "failed: " + result.error);
      text_ += '\n';
      return;
    }
    const Percentiles rtt = result.rtt.percentiles();
    const double rate = median(result.messages_per_s);
    const bool limit = result.is_control();
    const std::string line = fmt::format(
        "  {:<18} {:<8} {:>7} {:>7} {:>7} {:>7} {:>6} {:>7} {:>9} {:>7} {:>7} {:>5} {:>5}", name,
        info.wait, format_ns(rtt.p50), format_ns(rtt.p99), format_ns(rtt.p999), format_ns(rtt.max),
        control == nullptr ? "" : format_digits(rtt.p50 / control->rtt.p50()), format_count(rate),
        format_rate(rate * static_cast<double>(result.message_bytes)),
        result.wakeup_ns.empty() ? "" : format_ns(median(result.wakeup_ns)),
        format_ns(result.cpu_s_per_million() * 1e3),
        result.system_calls_per_message ? format_digits(*result.system_calls_per_message) : "?",
        format_digits(result.switches_per_message()));
    if (limit)
      coloured(kDim, line);
    else if (info.mechanism == "ring")
      coloured(kGreen, line);
    else
      text_ += line;
    text_ += '\n';
  }

  void skipped(const Skipped& one) {
    const std::string size =
        one.message_bytes ? fmt::format(", {}", format_size(*one.message_bytes)) : "";
    text_ += fmt::format("skipped: {}{}{}{}: {}\n", one.mechanism,
                         one.mechanism.empty() ? "" : ", ", one.placement, size, one.reason);
  }

  const Comparison& comparison_;
  bool colours_;
  std::string text_;
};

bool any_fragmented(const Comparison& comparison) {
  return std::any_of(comparison.results.begin(), comparison.results.end(),
                     [](const Result& result) { return result.fragmented; });
}

}  // namespace

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
  text += Table(comparison, colours).text();
  text +=
      "p50 ... max: a message there and its answer back, real samples. msg/s, bytes/s: one way,\n"
      "or calls one after another where a mechanism has nothing else.\n"
      "wake-up: a round trip after 20 ms of silence. cpu/msg: processor time of both sides per\n"
      "message. sys, sw: system calls (counted in a pass of their own) and context switches per\n"
      "message. Rows that spin cost a processor while they wait.\n";
  if (any_fragmented(comparison))
    text += "*: longer than the mechanism's longest message, so each travels in several.\n";
  return text;
}

}  // namespace farcall::compare
