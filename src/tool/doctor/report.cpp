// SPDX-License-Identifier: Apache-2.0
#include "tool/doctor/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "watch/text.hpp"

namespace farcall::tool::doctor {
namespace {

using farcall::doctor::Connection;
using farcall::doctor::Finding;
using farcall::doctor::Severity;

constexpr std::size_t kColumns = 96;
constexpr std::size_t kIndent = 9;

// Names of processes and sockets are theirs to choose: nothing that a terminal would obey.
using watch::printable;

// Broken between words; the first line stands behind `head`.
std::string wrapped(const std::string& head, const std::string& text) {
  std::string result;
  std::string line = head;
  std::istringstream words(text);
  bool empty = true;  // nothing of the text is in the line
  for (std::string raw; words >> raw;) {
    const std::string word = printable(raw);
    if (!empty && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line = std::string(kIndent, ' ');
      empty = true;
    }
    if (!empty) line += ' ';
    line += word;
    empty = false;
  }
  return result + line + "\n";
}

std::string to_text(const Finding& finding) {
  std::string text = fmt::format("{:<{}}{} [{}]\n", to_string(finding.severity), kIndent,
                                 printable(finding.about), finding.id);
  const std::string indent(kIndent, ' ');
  return text + wrapped(indent, finding.cause) + wrapped(indent + "Cure: ", finding.cure);
}

std::string to_text(const Connection& connection) {
  std::string text =
      fmt::format("  {} {}", to_string(connection.protocol), printable(connection.endpoint));
  if (!connection.peer.empty()) text += " with " + printable(connection.peer);
  text += fmt::format(": {} of {} accelerated", connection.accelerated, connection.count);
  if (!connection.reason.empty()) text += fmt::format(" ({})", connection.reason);
  return text + "\n";
}

std::size_t count(const Report& report, Severity severity) {
  return static_cast<std::size_t>(
      std::ranges::count(report.findings, severity, &Finding::severity));
}

std::string plural(std::size_t number, const char* noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

}  // namespace

std::string to_text(const Report& report) {
  const std::string target = printable(report.target);
  std::string text;
  for (const Finding& finding : report.findings) text += to_text(finding) + "\n";
  if (report.connections) {
    text +=
        fmt::format("connections of {}{}\n", target, report.connections->empty() ? ": none" : "");
    for (const Connection& connection : *report.connections) text += to_text(connection);
    text += "\n";
  }
  text += fmt::format("{}: {}, {}, {}\n", target, plural(count(report, Severity::fault), "fault"),
                      plural(count(report, Severity::warning), "warning"),
                      plural(count(report, Severity::note), "note"));
  return text;
}

// Names as `farcall top` and `stat` have them: two of other bytes are two.
std::string to_json(const Report& report) {
  using nlohmann::json;
  json findings = json::array();
  for (const Finding& finding : report.findings)
    findings.push_back({{"id", finding.id},
                        {"severity", to_string(finding.severity)},
                        {"about", printable(finding.about)},
                        {"cause", printable(finding.cause)},
                        {"cure", printable(finding.cure)}});
  json all{{"target", printable(report.target)},
           {"wrong", farcall::doctor::anything_wrong(report.findings)},
           {"findings", findings}};
  if (report.connections) {
    json connections = json::array();
    for (const Connection& connection : *report.connections) {
      json one{{"protocol", to_string(connection.protocol)},
               {"endpoint", printable(connection.endpoint)},
               {"count", connection.count},
               {"accelerated", connection.accelerated}};
      if (connection.peer_pid != 0) one["peer_pid"] = connection.peer_pid;
      if (!connection.peer.empty()) one["peer"] = printable(connection.peer);
      if (!connection.reason.empty()) one["reason"] = connection.reason;
      connections.push_back(one);
    }
    all["connections"] = connections;
  }
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace farcall::tool::doctor
