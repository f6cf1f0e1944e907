// SPDX-License-Identifier: Apache-2.0
#include "tool/top/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tool/top/top.hpp"
#include "watch/text.hpp"

namespace farcall::tool::top {
namespace {

using watch::Flow;
using watch::Flows;
using watch::Passed;

std::uint64_t messages_of(const Passed& passed) { return passed.messages + passed.kernel_messages; }
std::uint64_t bytes_of(const Passed& passed) { return passed.bytes + passed.kernel_bytes; }

// What a line is made of.
struct Context {
  const Flow& flow;
  double seconds;  // 0: the totals are shown
  std::int64_t now;
};

const watch::Figures& shown(const Context& context) {
  return context.seconds > 0 ? context.flow.since : context.flow.total;
}
double rate(const Context& context, std::uint64_t count) {
  return static_cast<double>(count) / (context.seconds > 0 ? context.seconds : 1);
}

double kernel_share(const watch::Figures& figures) {
  const std::uint64_t all = bytes_of(figures.forward) + bytes_of(figures.back);
  const std::uint64_t kernel = figures.forward.kernel_bytes + figures.back.kernel_bytes;
  return all == 0 ? -1 : static_cast<double>(kernel) / static_cast<double>(all);
}

std::uint64_t spun(const watch::Figures& figures) {
  return figures.left.spun_ns + figures.right.spun_ns;
}

std::string party(const watch::Party& party) {
  if (party.pid == 0) return "-";
  return fmt::format("{} {}", party.pid, party.command);
}

std::uint64_t waited(std::uint64_t since, std::int64_t now) {
  const auto until = static_cast<std::uint64_t>(now);
  return since > 1 && since < until ? until - since : 0;
}

// Who sleeps now until the other one does something: "<" the left one, ">" the right one.
std::string waits(const Context& context) {
  const watch::Waits& left = context.flow.total.left;
  const watch::Waits& right = context.flow.total.right;
  if (left.since == 0 && right.since == 0) return "-";
  const char* who = left.since != 0 && right.since != 0 ? "<>" : left.since != 0 ? "<" : ">";
  const std::uint64_t longest =
      std::max(waited(left.since, context.now), waited(right.since, context.now));
  return longest == 0 ? who : who + short_time(longest);
}

struct Column {
  const char* title;
  int width;  // negative: to the left
  int importance;
  std::string (*text)(const Context& context);
};

std::string percent(double share) { return share < 0 ? "-" : fmt::format("{:.0f}%", share * 100); }

const std::array kColumns{
    Column{"KIND", -9, 9,
           [](const Context& c) { return std::string(watch::to_text(c.flow.kind)); }},
    Column{"FROM", -16, 10, [](const Context& c) { return party(c.flow.left); }},
    Column{"TO", -16, 10, [](const Context& c) { return party(c.flow.right); }},
    Column{"VIA", -6, 7,
           [](const Context& c) { return std::string(watch::to_text(c.flow.carrier)); }},
    Column{"N", 4, 3, [](const Context& c) { return std::to_string(c.flow.connections); }},
    Column{"MSG/s>", 6, 8,
           [](const Context& c) { return short_number(rate(c, messages_of(shown(c).forward))); }},
    Column{"<MSG/s", 6, 8,
           [](const Context& c) { return short_number(rate(c, messages_of(shown(c).back))); }},
    Column{"B/s>", 6, 6,
           [](const Context& c) { return short_number(rate(c, bytes_of(shown(c).forward))); }},
    Column{"<B/s", 6, 6,
           [](const Context& c) { return short_number(rate(c, bytes_of(shown(c).back))); }},
    Column{"KERN", 5, 4, [](const Context& c) { return percent(kernel_share(shown(c))); }},
    Column{"P50", 5, 5,
           [](const Context& c) { return short_time(watch::percentile(shown(c).times, 50)); }},
    Column{"P99", 5, 5,
           [](const Context& c) { return short_time(watch::percentile(shown(c).times, 99)); }},
    Column{"SPIN", 5, 2,
           [](const Context& c) {
             return c.seconds > 0 ? percent(static_cast<double>(spun(shown(c))) / (c.seconds * 1e9))
                                  : short_time(spun(shown(c)));
           }},
    Column{"WAIT", 6, 4, waits},
    Column{"NAME", -12, 7,
           [](const Context& c) { return c.flow.name.empty() ? "-" : c.flow.name; }},
};
constexpr int kLeastName = 12;

// The least importance of those that are shown.
int least_importance(unsigned width) {
  for (int least = 1; least < 10; ++least) {
    int needed = 0;
    for (const Column& column : kColumns)
      if (column.importance >= least) needed += std::abs(column.width) + 1;
    if (needed <= static_cast<int>(width) + 1) return least;
  }
  return 10;
}

// Of characters, not of bytes: UTF-8's further bytes take no column.
std::string fit(const std::string& text, int width) {
  const auto room = static_cast<std::size_t>(std::abs(width));
  std::string cut;
  std::size_t columns = 0;
  for (const char byte : text) {
    const bool goes_on = (static_cast<unsigned char>(byte) & 0xc0) == 0x80;
    if (!goes_on && columns == room) break;
    if (!goes_on) ++columns;
    cut += byte;
  }
  const std::string blanks(room - columns, ' ');
  return width < 0 ? cut + blanks : blanks + cut;
}

template <class Text>
std::string compose(unsigned width, Text text) {
  const int least = least_importance(width);
  std::string line;
  std::size_t used = 0;
  for (const Column& column : kColumns) {
    if (column.importance < least) continue;
    int columns = column.width;
    // The name has what is left.
    if (&column == &kColumns.back())
      columns = -std::max(kLeastName, static_cast<int>(width) - static_cast<int>(used));
    line += fit(text(column), columns);
    used += static_cast<std::size_t>(std::abs(columns)) + 1;
    if (&column != &kColumns.back()) line += ' ';
  }
  return fit(line, -static_cast<int>(width));
}

double weight(const Flow& flow, const View& view, const Flows& flows) {
  const watch::Figures& since = flow.since;
  switch (view.sort) {
    case Sort::messages:
      return static_cast<double>(messages_of(since.forward) + messages_of(since.back));
    case Sort::bytes: return static_cast<double>(bytes_of(since.forward) + bytes_of(since.back));
    case Sort::kernel:
      return static_cast<double>(since.forward.kernel_bytes + since.back.kernel_bytes);
    case Sort::latency: return static_cast<double>(watch::percentile(since.times, 50));
    case Sort::spin: return static_cast<double>(spun(since));
    case Sort::wait:
      return static_cast<double>(std::max(waited(flow.total.left.since, flows.looked_at()),
                                          waited(flow.total.right.since, flows.looked_at())));
    case Sort::kind:
    case Sort::name:
    case Sort::count_: break;
  }
  return 0;
}

}  // namespace

const char* to_text(Sort sort) noexcept {
  switch (sort) {
    case Sort::messages: return "messages";
    case Sort::bytes: return "bytes";
    case Sort::kernel: return "kernel";
    case Sort::latency: return "latency";
    case Sort::spin: return "spin";
    case Sort::wait: return "wait";
    case Sort::kind: return "kind";
    case Sort::name: return "name";
    case Sort::count_: break;
  }
  return "?";
}

Sort sort_of(const std::string& text) noexcept {
  for (unsigned i = 0; i < static_cast<unsigned>(Sort::count_); ++i)
    if (text == to_text(static_cast<Sort>(i))) return static_cast<Sort>(i);
  return Sort::count_;
}

std::string short_number(double value) {
  if (value < 0.05) return "0";
  if (value < 9.95) return fmt::format("{:.1f}", value);
  if (value < 99'999.5) return fmt::format("{:.0f}", value);
  for (const char* unit = "kMGTPE"; *unit != '\0'; ++unit) {
    value /= 1000;
    if (value < 99.95) return fmt::format("{:.1f}{}", value, *unit);
    if (value < 999.5) return fmt::format("{:.0f}{}", value, *unit);
  }
  return "huge";
}

std::string short_time(std::uint64_t ns) {
  if (ns == 0) return "-";
  double value = static_cast<double>(ns);
  for (const char* unit = "num"; *unit != '\0'; ++unit) {
    if (value < 9.95 && *unit != 'n') return fmt::format("{:.1f}{}", value, *unit);
    if (value < 999.5) return fmt::format("{:.0f}{}", value, *unit);
    value /= 1000;
  }
  return value < 9999.5 ? fmt::format("{:.0f}s", value) : "long";
}

std::string spelled_time(std::uint64_t ns) {
  std::string text = short_time(ns);
  if (text == "-") return "no time";
  if (text == "long") return "hours";
  const char unit = text.back();
  text.pop_back();
  return text + (unit == 's' ? " s" : unit == 'm' ? " ms" : unit == 'u' ? " us" : " ns");
}

bool matches(const Flow& flow, const std::string& filter) {
  if (filter.empty()) return true;
  const std::string all =
      fmt::format("{} {} {} {} {} {}", watch::to_text(flow.kind), watch::to_text(flow.carrier),
                  party(flow.left), party(flow.right), flow.name, watch::reason_text(flow.reason));
  return all.find(filter) != std::string::npos;
}

std::string header(unsigned width, const View& view) {
  static_cast<void>(view);
  return compose(width, [](const Column& column) { return std::string(column.title); });
}

std::vector<Line> lines(const Flows& flows, unsigned width, const View& view) {
  std::vector<const Flow*> chosen;
  for (const Flow& flow : flows.flows())
    if (matches(flow, view.filter)) chosen.push_back(&flow);
  std::stable_sort(chosen.begin(), chosen.end(), [&](const Flow* one, const Flow* other) {
    if (view.sort == Sort::name) return one->name < other->name;
    if (view.sort == Sort::kind) return one->kind < other->kind;
    return weight(*one, view, flows) > weight(*other, view, flows);
  });
  if (view.reversed) std::reverse(chosen.begin(), chosen.end());
  std::vector<Line> all;
  for (const Flow* flow : chosen) {
    const Context context{.flow = *flow,
                          .seconds = static_cast<double>(flows.elapsed_ns()) / 1e9,
                          .now = flows.looked_at()};
    all.push_back(
        {.text = compose(width, [&](const Column& column) { return column.text(context); }),
         .waits = flow->total.left.since != 0 || flow->total.right.since != 0,
         .by_kernel = flow->carrier == observe::Carrier::kernel});
  }
  return all;
}

}  // namespace farcall::tool::top
