// SPDX-License-Identifier: Apache-2.0
//
// farcall bridge status: what a bridge that runs on this machine says of itself.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tool/bridge/bridge.hpp"
#include "watch/text.hpp"

namespace farcall::tool::bridge {
namespace {

// The bridge may be another user's, who is not to say anything to this terminal.
std::string plain(const nlohmann::json& text) { return watch::printable(text.get<std::string>()); }

// Nor is it to keep this process busy with what nests without end, or is wider than any terminal.
nlohmann::json parse(const std::string& text) {
  constexpr int kDeepest = 16;
  constexpr const char* kWrong = "what the channel says is no status of a bridge";
  auto all = nlohmann::json::parse(text, [](int depth, auto, const auto&) {
    if (depth > kDeepest) throw farcall::bridge::BridgeError(kWrong);
    return true;
  });
  if (!all.is_object()) throw farcall::bridge::BridgeError(kWrong);
  return all;
}

constexpr std::size_t kWidest = 80;

}  // namespace

ExitCode print_status(const std::string& name, bool json) {
  const std::string text =
      farcall::bridge::ask_status(name.empty() ? farcall::bridge::Config().status : name);
  const nlohmann::json all = parse(text);
  if (json) {
    constexpr int kOneLine = -1;
    fmt::print("{}\n", all.dump(kOneLine, ' ', true));  // in ASCII
    return kSuccess;
  }
  const bool connected = all.at("connected");
  fmt::print("bridge {} {}{}, {} reconnects\n", all.at("pid").get<int>(),
             connected ? "connected to " : "not connected",
             connected ? plain(all.at("server")) : "", all.at("reconnects").get<unsigned>());
  std::size_t width = 4;
  for (const auto& each : all.at("names"))
    width = std::max({width, each.at("local").get<std::string>().size(),
                      each.at("subject").get<std::string>().size()});
  width = std::min(width, kWidest);
  fmt::print("{:6} {:{}} {:{}} {:>10} {:>8} {:>8} {:>9} {:>9} {:>9}  {}\n", "", "LOCAL", width,
             "SUBJECT", width, "CALLS", "NOW", "ERRORS", "P50 us", "P90 us", "P99 us", "");
  for (const auto& each : all.at("names")) {
    const auto& latency = each.at("latency_us");
    std::string note = plain(each.at("last_error"));
    if (each.contains("local_server") && !each.at("local_server").get<bool>())
      note += note.empty() ? "no local server" : ", no local server";
    fmt::print("{:6} {:{}} {:{}} {:>10} {:>8} {:>8} {:>9.1f} {:>9.1f} {:>9.1f}  {}\n",
               plain(each.at("direction")), plain(each.at("local")), width,
               plain(each.at("subject")), width,
               each.at("calls").get<std::uint64_t>() + each.at("one_way").get<std::uint64_t>() +
                   each.at("pulses").get<std::uint64_t>(),
               each.at("in_progress").get<std::int64_t>(), each.at("errors").get<std::uint64_t>(),
               latency.at("p50").get<double>(), latency.at("p90").get<double>(),
               latency.at("p99").get<double>(), note);
  }
  return kSuccess;
}

}  // namespace farcall::tool::bridge
