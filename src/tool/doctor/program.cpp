// SPDX-License-Identifier: Apache-2.0
//
// farcall doctor -- PROGRAM: what the library counted in it and its children.
#include <fmt/format.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstring>

#include "doctor/limits.hpp"
#include "doctor/reasons.hpp"
#include "tool/doctor/examine.hpp"
#include "tool/doctor/settings.hpp"
#include "tool/exit_code.hpp"
#include "tool/run/launch.hpp"
#include "tool/run/statistics.hpp"

namespace farcall::tool::doctor {
namespace {

using namespace farcall::doctor;

std::string subject(const run::Line& line) {
  return fmt::format("{} {}", line.protocol, line.endpoint);
}

// Those that ended before anything was decided, and were given back neither.
std::uint64_t without_reason(const run::Line& line) {
  if (line.protocol == "udp") return 0;
  std::uint64_t known = line.accelerated;
  for (const std::uint64_t number : line.reasons) known += number;
  return line.connections - std::min(line.connections, known);
}

void judge(const run::Line& line, Findings& findings) {
  if (const std::uint64_t few = without_reason(line); few != 0) {
    const doctor::Reason& why = reason("too-short");
    findings.push_back(
        {why.id, why.severity,
         fmt::format("{}, {} of {} connections", subject(line), few, line.connections), why.cause,
         why.cure});
  }
  for (std::size_t i = 0; i < preload::kReasons; ++i) {
    if (line.reasons[i] == 0) continue;
    const doctor::Reason& why = reason(reason_id(static_cast<preload::Reason>(i)));
    findings.push_back(
        {why.id, why.severity,
         fmt::format("{}, {} of {} {}", subject(line), line.reasons[i], line.connections,
                     line.protocol == "udp" ? "sockets" : "connections"),
         why.cause, why.cure});
  }
  constexpr std::uint64_t kMany = 1000;
  const std::uint64_t all = line.ring.messages + line.kernel.messages;
  if (line.accelerated != 0 && all >= kMany && line.kernel.messages * 2 > all)
    findings.push_back(receivers_sleep(subject(line), line.kernel.messages, all));
}

void judge_end(int status, const std::string& program, Findings& findings) {
  const auto add = [&](Severity severity, std::string cause) {
    findings.push_back(
        {"program-ended-badly", severity, program, std::move(cause),
         "Make sure that it does without farcall, too, what it does here; what is said "
         "of its connections is what it came to."});
  };
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const bool asked = signal == SIGINT || signal == SIGTERM || signal == SIGHUP;
    add(asked ? Severity::note : Severity::warning,
        fmt::format("It was ended by signal {} ({}).", signal, ::strsignal(signal)));
  } else if (WEXITSTATUS(status) == kNotExecuted) {
    add(Severity::fault,
        "It could not be executed, or did not find what it executes (status 127).");
  } else if (WEXITSTATUS(status) != 0) {
    add(Severity::note, fmt::format("It ended with status {}.", WEXITSTATUS(status)));
  }
}

// The one that most of those have that are not accelerated.
std::string main_reason(const run::Line& line) {
  if (line.accelerated >= line.connections) return {};
  const auto most = std::ranges::max_element(line.reasons);
  if (*most != 0 && *most >= without_reason(line))
    return reason_id(static_cast<preload::Reason>(most - line.reasons.begin()));
  return without_reason(line) != 0 ? "too-short" : "";
}

std::vector<Connection> connections_of(const std::vector<run::Line>& lines) {
  std::vector<Connection> all;
  for (const run::Line& line : lines)
    all.push_back({.protocol = line.protocol == "tcp"   ? Protocol::tcp
                               : line.protocol == "udp" ? Protocol::udp
                                                        : Protocol::unix_socket,
                   .endpoint = line.endpoint,
                   .peer = {},
                   .count = line.connections,
                   .accelerated = line.accelerated,
                   .reason = main_reason(line)});
  return all;
}

}  // namespace

Report examine_program(const std::vector<std::string>& command) {
  const std::string& name = command.front();
  Report report{.target = name, .connections = {}, .findings = {}};
  Findings& findings = report.findings;
  const run::Program program = run::examine(name);
  judge(program, findings);
  const Environment environment = own_environment();
  if (program.refusal.empty()) {
    const run::Statistics statistics;
    run::Request request;
    request.command = command;
    judge_end(run::run_counted(request, program, statistics, true), name, findings);
    const std::vector<run::Line> lines = statistics.lines();
    for (const run::Line& line : lines) judge(line, findings);
    report.connections = connections_of(lines);
    if (lines.empty())
      findings.push_back(
          {"no-connections", Severity::note, name,
           "It used no connection within this machine that the library saw.",
           "Nothing need be done if it has none; else it goes round the C library, or "
           "talks to another machine."});
    if (statistics.not_listed() != 0)
      findings.push_back(
          {"too-many-endpoints", Severity::note, name,
           fmt::format("{} connections went to endpoints that are too many to list.",
                       statistics.not_listed()),
           "Look at a part of it: FARCALL_ACCELERATE names the endpoints that count."});
  }
  const Tree tree;
  examine_environment(environment, name, findings);
  examine_limits(tree, "self", name, findings);
  examine_group(tree, "self", name, findings);
  examine_surroundings(true, wants_module(environment), findings);
  join_alike(findings);
  sort_by_severity(findings);
  return report;
}

}  // namespace farcall::tool::doctor
