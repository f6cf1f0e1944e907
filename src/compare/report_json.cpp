// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "compare/report.hpp"

namespace farcall::compare {
namespace {

using Json = nlohmann::ordered_json;

// Figures have limited precision; digits that mean nothing make files hard to compare.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double scale = std::pow(10, 5 - std::ceil(std::log10(std::abs(value))));
  return std::round(value * scale) / scale;
}

Json versions_json(const Machine& machine) {
  Json json = Json::object();
  for (const auto& [library, version] : machine.libraries)
    json[library] = version ? Json(*version) : Json(nullptr);
  return json;
}

Json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},
          {"processors", machine.processors},
          {"allowed", machine.allowed},
          {"two_cpus", {machine.first_processor, machine.second_processor}},
          {"one_cpu", machine.first_processor},
          {"siblings", machine.siblings},
          {"kernel", machine.kernel},
          {"virtualization", machine.virtualization},
          {"governor", machine.governor},
          {"mitigations", machine.mitigations},
          {"clock_source", machine.clock_source},
          {"timer_ns", rounded(machine.timer_ns)},
          {"page_bytes", machine.page_bytes},
          {"memory_bytes", machine.memory_bytes},
          {"load", rounded(machine.load)},
          {"time", machine.time},
          {"farcall", FARCALL_VERSION},
          {"command", machine.command},
          {"build_type", machine.build_type},
          {"compiler", machine.compiler},
          {"libraries", versions_json(machine)}};
}

Json settings_json(const Settings& settings, double seconds) {
  return {{"workload", settings.is_broadcast() ? "broadcast"
                       : settings.is_scaling() ? "scaling"
                       : settings.dead_peer    ? "dead-peer"
                                               : "pair"},
          {"quick", settings.quick},
          {"rounds", settings.effort.rounds},
          {"rtt_ms_per_round", static_cast<double>(settings.effort.rtt_ns) * 1e-6},
          {"rtt_samples_per_round", settings.effort.rtt_samples},
          {"stream_ms_per_round", static_cast<double>(settings.effort.stream_ns) * 1e-6},
          {"idle_pause_ms", static_cast<double>(kIdlePause) * 1e-6},
          {"depth_bytes", settings.depth_bytes},
          {"seed", settings.seed},
          {"seconds", rounded(seconds)}};
}

Json percentiles_json(const Percentiles& times) {
  return {{"mean", rounded(times.mean)}, {"p50", rounded(times.p50)},
          {"p90", rounded(times.p90)},   {"p99", rounded(times.p99)},
          {"p999", rounded(times.p999)}, {"max", rounded(times.max)}};
}

Json spread_json(const Samples& samples) {
  return {{"p50_min", rounded(samples.least_median())},
          {"p50_max", rounded(samples.greatest_median())}};
}

Json stream_json(const Result& result) {
  const auto [least, greatest] =
      std::minmax_element(result.messages_per_s.begin(), result.messages_per_s.end());
  const auto messages = static_cast<double>(result.streamed);
  return {{"messages_per_s", rounded(median(result.messages_per_s))},
          {"spread",
           {{"messages_per_s_min", rounded(*least)}, {"messages_per_s_max", rounded(*greatest)}}},
          {"messages", result.streamed},
          {"missed", rounded(median(result.missed))},
          {"cpu_s_per_million",
           rounded(static_cast<double>(result.stream_usage.cpu_ns) * 1e-3 / messages)}};
}

Json broadcast_json(const Result& result) {
  const RowInfo& info = result.row->info();
  Json json{{"mechanism", info.mechanism},
            {"engine", info.engine},
            {"wait", info.wait},
            {"policy", info.policy},
            {"placement", to_string(result.placement)},
            {"readers", result.readers},
            {"message_bytes", result.message_bytes}};
  if (!result.error.empty()) {
    json["error"] = result.error;
    json["round_ns"] = nullptr;
    return json;
  }
  const auto rounds = static_cast<double>(result.rtt_calls);
  json["samples"] = result.rtt.count();
  json["rounds"] = result.rtt.rounds();
  json["round_ns"] = percentiles_json(result.rtt.percentiles());
  json["spread"] = spread_json(result.rtt);
  json["stream"] = stream_json(result);
  json["setup_us"] = rounded(median(result.setup_ns) * 1e-3);
  json["cpu_s_per_million"] = rounded(static_cast<double>(result.rtt_usage.cpu_ns) * 1e-3 / rounds);
  json["context_switches_per_round"] =
      rounded(static_cast<double>(result.rtt_usage.switches) / rounds);
  return json;
}

// By what stands in the order of roles.
Json by_side(const std::vector<double> (&values)[2]) {
  return {{"server", rounded(median(values[1]))}, {"other_end", rounded(median(values[0]))}};
}

Json scaling_json(const Result& result) {
  const RowInfo& info = result.row->info();
  Json json{{"mechanism", info.mechanism},
            {"engine", info.engine},
            {"wait", info.wait},
            {"placement", to_string(result.placement)},
            {"clients", result.crowd.clients},
            {"servers", result.crowd.servers},
            {"idle", result.crowd.idle},
            {"message_bytes", result.message_bytes}};
  if (!result.error.empty()) {
    json["error"] = result.error;
    json["call_ns"] = nullptr;
    return json;
  }
  const auto calls = static_cast<double>(result.rtt_calls);
  const auto [least, greatest] =
      std::minmax_element(result.messages_per_s.begin(), result.messages_per_s.end());
  json["samples"] = result.rtt.count();
  json["rounds"] = result.rtt.rounds();
  json["calls"] = result.rtt_calls;
  json["calls_of_clients"] = result.calls_of_clients;
  json["calls_per_s"] = rounded(median(result.messages_per_s));
  json["spread"] = {{"calls_per_s_min", rounded(*least)}, {"calls_per_s_max", rounded(*greatest)}};
  json["call_ns"] = percentiles_json(result.rtt.percentiles());
  json["fairness"] = rounded(median(result.fairness));
  json["cpu_s_per_million"] = rounded(static_cast<double>(result.rtt_usage.cpu_ns) * 1e-3 / calls);
  json["context_switches_per_call"] =
      rounded(static_cast<double>(result.rtt_usage.switches) / calls);
  if (result.crowd.idle != 0)
    json["idle_connections"] = {{"bytes_each", by_side(result.idle.bytes)},
                                {"descriptors_each", by_side(result.idle.descriptors)},
                                {"cpu_s_per_s", by_side(result.idle.cpu)}};
  return json;
}

// What every row says, and all that one does that has failed: then it has no `figure`.
Json head_of(const Result& result, const char* figure) {
  const RowInfo& info = result.row->info();
  Json json{{"mechanism", info.mechanism},
            {"engine", info.engine},
            {"wait", info.wait},
            {"placement", to_string(result.placement)},
            {"message_bytes", result.message_bytes}};
  if (result.error.empty()) return json;
  json["error"] = result.error;
  json[figure] = nullptr;
  return json;
}

Json dead_peer_json(const Result& result) {
  Json json = head_of(result, "outcome");
  if (!result.error.empty()) return json;
  const Result::Loss& loss = result.loss;
  const bool waits = loss.fate == Board::Loss::waits;
  json["outcome"] = waits ? "waits" : loss.fate == Board::Loss::told ? "told" : "returned";
  json["told_ns"] = waits ? Json(nullptr) : Json(rounded(median(loss.ns)));
  json["told"] = waits ? Json(nullptr) : Json(loss.text);
  json["idle_cpu_s_per_s"] = {{"client", rounded(median(loss.cpu[0]))},
                              {"server", rounded(median(loss.cpu[1]))}};
  return json;
}

Json throughput_json(const Result& result) {
  if (result.messages_per_s.empty()) return nullptr;
  const double rate = median(result.messages_per_s);
  const auto [least, greatest] =
      std::minmax_element(result.messages_per_s.begin(), result.messages_per_s.end());
  Json json{
      {"messages_per_s", rounded(rate)},
      {"bytes_per_s", rounded(rate * static_cast<double>(result.message_bytes))},
      {"one_way", result.streamed != 0},
      {"spread",
       {{"messages_per_s_min", rounded(*least)}, {"messages_per_s_max", rounded(*greatest)}}}};
  if (result.streamed != 0) {
    const auto messages = static_cast<double>(result.streamed);
    json["messages"] = result.streamed;
    json["cpu_s_per_million"] =
        rounded(static_cast<double>(result.stream_usage.cpu_ns) * 1e-3 / messages);
    json["context_switches_per_message"] =
        rounded(static_cast<double>(result.stream_usage.switches) / messages);
  }
  return json;
}

Json row_json(const Result& result) {
  Json json = head_of(result, "rtt_ns");
  if (!result.error.empty()) return json;
  json["depth"] = result.depth ? Json(*result.depth) : Json(nullptr);
  json["samples"] = result.rtt.count();
  json["rounds"] = result.rtt.rounds();
  json["rtt_ns"] = percentiles_json(result.rtt.percentiles());
  json["spread"] = spread_json(result.rtt);
  json["throughput"] = throughput_json(result);
  json["wakeup_ns"] =
      result.wakeup_ns.empty() ? Json(nullptr) : Json(rounded(median(result.wakeup_ns)));
  json["setup_us"] = rounded(median(result.setup_ns) * 1e-3);
  json["cpu_s_per_million"] = rounded(result.cpu_s_per_million());
  json["context_switches_per_message"] = rounded(result.switches_per_message());
  json["syscalls_per_message"] = result.system_calls_per_message
                                     ? Json(rounded(*result.system_calls_per_message))
                                     : Json(nullptr);
  if (!result.system_calls_note.empty()) json["syscalls_note"] = result.system_calls_note;
  json["fragmented"] = result.fragmented;
  return json;
}

}  // namespace

std::string report_json(const Comparison& comparison, const Machine& machine) {
  Json rows = Json::array();
  for (const Result& result : comparison.results)
    rows.push_back(result.crowd.clients != 0       ? scaling_json(result)
                   : result.readers != 0           ? broadcast_json(result)
                   : comparison.settings.dead_peer ? dead_peer_json(result)
                                                   : row_json(result));
  Json absent = Json::array();
  for (const AbsentRow& row : comparison.absent)
    absent.push_back({{"mechanism", row.mechanism}, {"reason", row.reason}});
  Json skipped = Json::array();
  for (const Skipped& one : comparison.skipped) {
    Json json{{"placement", one.placement}, {"reason", one.reason}};
    if (!one.mechanism.empty()) json["mechanism"] = one.mechanism;
    if (one.message_bytes) json["message_bytes"] = *one.message_bytes;
    skipped.push_back(std::move(json));
  }
  const Json report{{"machine", machine_json(machine)},
                    {"settings", settings_json(comparison.settings, comparison.seconds)},
                    {"rows", std::move(rows)},
                    {"absent", std::move(absent)},
                    {"skipped", std::move(skipped)}};
  // Texts of the system may be anything; what is not UTF-8 must not stop the report.
  return report.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace farcall::compare
