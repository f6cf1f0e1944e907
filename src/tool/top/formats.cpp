// SPDX-License-Identifier: Apache-2.0
//
// What programs read: JSON, and the text format of Prometheus.
#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tool/top/passed_json.hpp"
#include "tool/top/top.hpp"
#include "watch/text.hpp"

namespace farcall::tool::top {
namespace {

using nlohmann::json;
using watch::Figures;
using watch::Flow;
using watch::Flows;
using watch::Passed;

json json_of(const watch::Waits& waits, std::int64_t now) {
  json text{{"sleeps", waits.sleeps}, {"slept_ns", waits.slept_ns}, {"spun_ns", waits.spun_ns}};
  const auto until = static_cast<std::uint64_t>(now);
  if (waits.since != 0)
    text["waiting_ns"] =
        waits.since > 1 && waits.since < until ? json(until - waits.since) : json();
  return text;
}

json json_of(const watch::Party& party) {
  if (party.pid == 0) return nullptr;
  return {{"pid", party.pid}, {"command", party.command}, {"seen", party.seen}};
}

json json_of(const Figures& figures, std::int64_t now) {
  json text{{"forward", passed_json(figures.forward)},
            {"back", passed_json(figures.back)},
            {"from_waits", json_of(figures.left, now)},
            {"to_waits", json_of(figures.right, now)},
            {"dropped", figures.dropped}};
  if (figures.times.count != 0)
    text["answer_ns"] = {{"p50", watch::percentile(figures.times, 50)},
                         {"p99", watch::percentile(figures.times, 99)},
                         {"samples", figures.times.count}};
  return text;
}

std::string escaped(const std::string& text) {
  std::string value;
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') value += '\\';
    value += byte;
  }
  return value;
}

std::string labels_of(const Flow& flow) {
  const auto pid = [](const watch::Party& party) {
    return party.pid == 0 ? std::string() : std::to_string(party.pid);
  };
  return fmt::format(
      R"(kind="{}",via="{}",name="{}",from_pid="{}",from="{}",to_pid="{}",to="{}",reason="{}")",
      watch::to_text(flow.kind), watch::to_text(flow.carrier), escaped(flow.name), pid(flow.left),
      escaped(flow.left.command), pid(flow.right), escaped(flow.right.command),
      watch::reason_text(flow.reason));
}

bool matches(const watch::Process& process, const std::string& filter) {
  return filter.empty() || watch::printable(process.command).find(filter) != std::string::npos ||
         std::to_string(process.pid) == filter;
}

// One of the metrics of what a process has closed.
struct ClosedMetric {
  const char* name;
  const char* help;
  std::uint64_t Passed::*memory;
  std::uint64_t Passed::*kernel;
};
constexpr ClosedMetric kClosedMetrics[] = {
    {"farcall_closed_messages_total", "Messages at ends that are closed.", &Passed::messages,
     &Passed::kernel_messages},
    {"farcall_closed_bytes_total", "Bytes at ends that are closed.", &Passed::bytes,
     &Passed::kernel_bytes}};

std::string labels_of(const watch::Process& process, const watch::Closed& closed) {
  return fmt::format(R"(kind="{}",pid="{}",command="{}")", watch::to_text(closed.kind), process.pid,
                     escaped(watch::printable(process.command)));
}

std::string closed_lines(const ClosedMetric& metric, const watch::Process& process) {
  std::string text;
  for (const watch::Closed& closed : process.closed)
    for (const bool sent : {true, false})
      for (const bool kernel : {false, true})
        text += fmt::format(
            "{}{{{},direction=\"{}\",path=\"{}\"}} {}\n", metric.name, labels_of(process, closed),
            sent ? "sent" : "received", kernel ? "kernel" : "memory",
            (sent ? closed.sent : closed.received).*(kernel ? metric.kernel : metric.memory));
  return text;
}

std::string begin_of(const char* name, const char* type, const char* help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

struct Metric {
  const char* name;
  const char* type;
  const char* help;
  std::function<std::string(const std::string& labels, const Flow& flow)> lines;
};

template <class Value>
std::string each_way(const char* name, const std::string& labels, const Flow& flow, Value value) {
  std::string text;
  for (const bool forward : {true, false})
    for (const bool kernel : {false, true})
      text += fmt::format("{}{{{},direction=\"{}\",path=\"{}\"}} {}\n", name, labels,
                          forward ? "forward" : "back", kernel ? "kernel" : "memory",
                          value(forward ? flow.grown.forward : flow.grown.back, kernel));
  return text;
}

template <class Value>
std::string each_party(const char* name, const std::string& labels, const Flow& flow, Value value) {
  return fmt::format("{}{{{},party=\"from\"}} {}\n{}{{{},party=\"to\"}} {}\n", name, labels,
                     value(flow.grown.left), name, labels, value(flow.grown.right));
}

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

std::vector<Metric> metrics() {
  return {
      {"farcall_connections", "gauge", "Connections, rings or sessions.",
       [](const std::string& labels, const Flow& flow) {
         return fmt::format("farcall_connections{{{}}} {}\n", labels, flow.connections);
       }},
      {"farcall_messages_total", "counter", "Messages, or of streams calls that moved something.",
       [](const std::string& labels, const Flow& flow) {
         return each_way("farcall_messages_total", labels, flow, [](const Passed& p, bool kernel) {
           return kernel ? p.kernel_messages : p.messages;
         });
       }},
      {"farcall_bytes_total", "counter", "Bytes.",
       [](const std::string& labels, const Flow& flow) {
         return each_way("farcall_bytes_total", labels, flow, [](const Passed& p, bool kernel) {
           return kernel ? p.kernel_bytes : p.bytes;
         });
       }},
      {"farcall_sleeps_total", "counter",
       "How often a party has slept until the other did something.",
       [](const std::string& labels, const Flow& flow) {
         return each_party("farcall_sleeps_total", labels, flow,
                           [](const watch::Waits& w) { return w.sleeps; });
       }},
      {"farcall_slept_seconds_total", "counter", "How long.",
       [](const std::string& labels, const Flow& flow) {
         return each_party("farcall_slept_seconds_total", labels, flow,
                           [](const watch::Waits& w) { return seconds(w.slept_ns); });
       }},
      {"farcall_spun_seconds_total", "counter", "Processor time spent waiting.",
       [](const std::string& labels, const Flow& flow) {
         return each_party("farcall_spun_seconds_total", labels, flow,
                           [](const watch::Waits& w) { return seconds(w.spun_ns); });
       }},
      {"farcall_dropped_total", "counter", "Messages that a reader has missed.",
       [](const std::string& labels, const Flow& flow) {
         return fmt::format("farcall_dropped_total{{{}}} {}\n", labels, flow.grown.dropped);
       }},
      {"farcall_answer_seconds", "gauge", "Time until an answer, of samples since the last look.",
       [](const std::string& labels, const Flow& flow) {
         if (flow.since.times.count == 0) return std::string();
         return fmt::format(
             "farcall_answer_seconds{{{0},quantile=\"0.5\"}} {1}\n"
             "farcall_answer_seconds{{{0},quantile=\"0.99\"}} {2}\n",
             labels, seconds(watch::percentile(flow.since.times, 50)),
             seconds(watch::percentile(flow.since.times, 99)));
       }},
  };
}

}  // namespace

std::string json_of(const Flows& flows, const std::vector<watch::Process>& processes,
                    const std::string& filter) {
  json all = json::array();
  for (const Flow& flow : flows.flows()) {
    if (!matches(flow, filter)) continue;
    json one{{"kind", watch::to_text(flow.kind)},
             {"via", watch::to_text(flow.carrier)},
             {"name", flow.name},
             {"from", json_of(flow.left)},
             {"to", json_of(flow.right)},
             {"connections", flow.connections},
             {"total", json_of(flow.total, flows.looked_at())},
             {"since", json_of(flow.since, flows.looked_at())}};
    if (flow.reason != 0) one["reason"] = watch::reason_text(flow.reason);
    all.push_back(std::move(one));
  }
  json closed = json::array();
  for (const watch::Process& process : processes)
    if (!process.closed.empty() && matches(process, filter))
      closed.push_back({{"pid", process.pid},
                        {"command", watch::printable(process.command)},
                        {"kinds", closed_json(process)}});
  return json{{"elapsed_ns", flows.elapsed_ns()}, {"flows", all}, {"closed", closed}}.dump() + "\n";
}

std::string prometheus_of(const Flows& flows, const std::vector<watch::Process>& processes,
                          const std::string& filter) {
  std::string text;
  for (const Metric& metric : metrics()) {
    text += begin_of(metric.name, metric.type, metric.help);
    for (const Flow& flow : flows.flows())
      if (matches(flow, filter)) text += metric.lines(labels_of(flow), flow);
  }
  text += begin_of("farcall_closed_total", "counter", "Ends that are closed.");
  for (const watch::Process& process : processes)
    for (const watch::Closed& closed : process.closed)
      if (matches(process, filter))
        text +=
            fmt::format("farcall_closed_total{{{}}} {}\n", labels_of(process, closed), closed.ends);
  for (const ClosedMetric& metric : kClosedMetrics) {
    text += begin_of(metric.name, "counter", metric.help);
    for (const watch::Process& process : processes)
      if (matches(process, filter)) text += closed_lines(metric, process);
  }
  return text;
}

}  // namespace farcall::tool::top
