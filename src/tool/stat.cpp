// SPDX-License-Identifier: Apache-2.0
//
// farcall stat: everything that a process, or all who have to do with a name, tell of themselves.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <tuple>

#include "memory/to_number.hpp"
#include "observe/clock.hpp"
#include "tool/command.hpp"
#include "tool/say.hpp"
#include "tool/top/passed_json.hpp"
#include "tool/top/table.hpp"
#include "watch/flows.hpp"
#include "watch/lease.hpp"
#include "watch/text.hpp"

namespace farcall::tool {
namespace {

using nlohmann::json;
using watch::End;
using watch::Process;

struct Stat {
  std::string what;
  double seconds = 1;
  bool as_json = false;
};

// One end with the times that its answers took while this looked; where it did not time them, all
// that have been recorded.
struct Timed {
  const End* end;
  observe::Times times{};
};

observe::Times times_of(const Process& process, const End& end) {
  observe::Times times{};
  return watch::read_times(process, end, times) ? times : observe::Times{};
}

// A channel's name without a user is the caller's own, or root's.
bool is_channel(const End& end, const std::string& name) {
  return end.kind == observe::Kind::channel &&
         (end.name == std::to_string(::geteuid()) + "/" + name || end.name == "0/" + name);
}

bool has_name(const Process& process, const End& end, const std::string& name) {
  return watch::printable(end.name) == name || is_channel(end, name) ||
         watch::printable(process.command) == name || watch::to_text(end.local) == name ||
         watch::to_text(end.remote) == name;
}

std::string age_of(std::int64_t opened) {
  const std::int64_t ns = observe::monotonic_ns() - opened;
  return opened > 0 && ns > 0 ? top::spelled_time(static_cast<std::uint64_t>(ns)) : "?";
}

// A half, or what has passed at ends that are closed.
template <class Way>
void print_way(const char* what, const Way& way) {
  fmt::print(
      "    {:<9} {} messages, {} bytes through memory; {} messages, {} bytes through the "
      "kernel\n",
      what, way.messages, way.bytes, way.kernel_messages, way.kernel_bytes);
}

void print_half(const char* what, const observe::Half& half) {
  print_way(what, half);
  if (half.dropped != 0) fmt::print("              {} missed\n", half.dropped);
  if ((half.sleeps | half.spun_ns | half.wakes | half.waiting_since) == 0) return;
  fmt::print("              slept {} times, {} in all; spun for {}; woke the other {} times{}\n",
             half.sleeps, top::spelled_time(half.slept_ns), top::spelled_time(half.spun_ns),
             half.wakes, half.waiting_since != 0 ? "; asleep now" : "");
}

void print_end(const Timed& timed) {
  const End& end = *timed.end;
  const std::string name = watch::printable(end.name);
  fmt::print("  {} {}{}{}: through {}\n", watch::to_text(end.kind), watch::to_text(end.role),
             name.empty() ? "" : " of ", name,
             end.carrier == observe::Carrier::memory   ? "memory"
             : end.carrier == observe::Carrier::trying ? "the kernel so far"
             : end.carrier == observe::Carrier::kernel ? "the kernel"
                                                       : "?");
  if (end.reason != 0) fmt::print("    because   {}\n", watch::reason_text(end.reason));
  if (end.local.known != 0 || end.remote.known != 0)
    fmt::print("    between   {} and {}\n", watch::to_text(end.local), watch::to_text(end.remote));
  std::string about = fmt::format("opened {} ago", age_of(end.opened));
  if (end.fd >= 0) about += fmt::format(", descriptor {}", end.fd);
  if (end.peer != 0) about += fmt::format(", with process {}", end.peer);
  if (end.inherited) about += ", inherited";
  fmt::print("    {}\n", about);
  print_half("sent", end.counters.sent);
  print_half("received", end.counters.received);
  if (timed.times.count != 0)
    fmt::print("    answers   p50 {}, p99 {} of {} samples\n",
               top::spelled_time(watch::percentile(timed.times, 50)),
               top::spelled_time(watch::percentile(timed.times, 99)), timed.times.count);
}

void print_closed(const watch::Closed& closed) {
  fmt::print("  closed: {} {}\n", closed.ends, watch::to_text(closed.kind));
  print_way("sent", closed.sent);
  print_way("received", closed.received);
}

json half_json(const observe::Half& half) {
  json text = top::passed_json(half);
  text.update({{"dropped", half.dropped},
               {"sleeps", half.sleeps},
               {"slept_ns", half.slept_ns},
               {"spun_ns", half.spun_ns},
               {"wakes", half.wakes},
               {"asleep", half.waiting_since != 0}});
  return text;
}

json end_json(const Timed& timed) {
  const End& end = *timed.end;
  json text{{"kind", watch::to_text(end.kind)},
            {"role", watch::to_text(end.role)},
            {"via", watch::to_text(end.carrier)},
            {"name", watch::printable(end.name)},
            {"local", watch::to_text(end.local)},
            {"remote", watch::to_text(end.remote)},
            {"fd", end.fd},
            {"peer", end.peer},
            {"session", end.session.inode},
            {"inherited", end.inherited},
            {"sent", half_json(end.counters.sent)},
            {"received", half_json(end.counters.received)}};
  if (end.reason != 0) text["reason"] = watch::reason_text(end.reason);
  if (timed.times.count != 0)
    text["answer_ns"] = {{"p50", watch::percentile(timed.times, 50)},
                         {"p99", watch::percentile(timed.times, 99)},
                         {"samples", timed.times.count}};
  return text;
}

// The processes that are meant. Says why there is none.
std::vector<Process> find(const Stat& stat, std::string& reason) {
  std::vector<Process> found;
  if (const auto pid = to_number<pid_t>(stat.what); pid && *pid > 0) {
    Process process;
    switch (watch::look(*pid, process)) {
      case watch::Seen::yes: found.push_back(std::move(process)); break;
      case watch::Seen::no_tables:
        reason = fmt::format("process {} does not use farcall, or has not yet", *pid);
        break;
      case watch::Seen::forbidden:
        reason = fmt::format(
            "process {} may not be looked at: it is another user's, or protected "
            "(who may trace a process may look)",
            *pid);
        break;
      case watch::Seen::silent:
        reason =
            fmt::format("the memory of process {} cannot be read: it keeps waiting who does", *pid);
        break;
      case watch::Seen::gone:
        reason = watch::unless_no_proc(fmt::format("there is no process {}", *pid));
        break;
    }
    return found;
  }
  for (Process& process : watch::Everybody().look()) {
    std::erase_if(process.ends, [&](const End& end) { return !has_name(process, end, stat.what); });
    // By the name of a command also one that has closed all that it had.
    const bool is_it = !process.closed.empty() && watch::printable(process.command) == stat.what;
    if (is_it || !process.ends.empty()) found.push_back(std::move(process));
  }
  if (found.empty())
    reason = fmt::format("nobody that you may look at has anything named {} open", stat.what);
  return found;
}

// The ends of `now` in the place of those that they were before.
void take_anew(std::vector<End>& ends, const std::vector<End>& now) {
  const auto place = [](const End& end) {
    return std::tuple(end.table, end.index, end.generation);
  };
  std::map<std::tuple<std::uint64_t, std::uint32_t, std::uint32_t>, const End*> fresh;
  for (const End& end : now) fresh[place(end)] = &end;
  for (End& end : ends)
    if (const auto found = fresh.find(place(end)); found != fresh.end()) end = *found->second;
}

// Of each process the times that its ends had recorded before.
using Before = std::vector<std::vector<observe::Times>>;

// Has answers timed for a while, and takes the figures anew.
Before time_answers(std::vector<Process>& processes, double seconds) {
  const std::chrono::nanoseconds duration(static_cast<std::int64_t>(seconds * 1e9));
  Before before;
  for (const Process& process : processes) {
    std::vector<watch::Lease> leases;
    auto& recorded = before.emplace_back();
    for (const End& end : process.ends) {
      recorded.push_back(times_of(process, end));
      if (end.role == observe::Role::client || end.role == observe::Role::none)
        leases.push_back({.word = watch::Lease::Word::watch, .end = &end, .sampling = 4});
    }
    watch::renew(process, leases, duration + std::chrono::seconds(1));
  }
  std::this_thread::sleep_for(duration);
  for (Process& process : processes) {
    Process now;
    if (watch::look(process.pid, now) != watch::Seen::yes || now.started != process.started)
      continue;
    take_anew(process.ends, now.ends);
    process.closed = std::move(now.closed);
  }
  return before;
}

int run(const Stat& stat) {
  std::string reason;
  std::vector<Process> processes = find(stat, reason);
  if (processes.empty()) {
    say("farcall stat: {}\n", reason);
    return kFailure;
  }
  Before before;
  if (stat.seconds > 0) before = time_answers(processes, stat.seconds);
  json all = json::array();
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const Process& process = processes[i];
    json ends = json::array();
    if (!stat.as_json)
      fmt::print("{} {} (user {})\n", process.pid, watch::printable(process.command), process.user);
    for (std::size_t j = 0; j < process.ends.size(); ++j) {
      Timed timed{.end = &process.ends[j]};
      watch::add_times(timed.times, times_of(process, *timed.end),
                       before.empty() ? observe::Times{} : before[i][j]);
      if (stat.as_json)
        ends.push_back(end_json(timed));
      else
        print_end(timed);
    }
    if (!stat.as_json) {
      if (process.ends.empty()) fmt::print("  has nothing open\n");
      for (const watch::Closed& closed : process.closed) print_closed(closed);
    }
    if (!stat.as_json && process.not_listed != 0)
      fmt::print("  and {} more for which it had no room\n", process.not_listed);
    all.push_back({{"pid", process.pid},
                   {"command", watch::printable(process.command)},
                   {"user", process.user},
                   {"ends", ends},
                   {"closed", top::closed_json(process)},
                   {"not_listed", process.not_listed}});
  }
  if (stat.as_json) fmt::print("{}\n", json{{"processes", all}}.dump(2));
  return kSuccess;
}

}  // namespace

void add_stat(Command root, int& exit_code) {
  auto stat = std::make_shared<Stat>();
  const Command command = root.subcommand("stat", "All that a process tells of its traffic");
  command.option("WHAT", stat->what, "A process, or a name: of a path, a channel, a command")
      .required()
      .not_empty();
  command
      .option("--interval", stat->seconds,
              "Time answers for so many seconds, 15 at most; 0: do not")
      .shows_default()
      .between(0.0, 15.0);
  command.flag("--json", stat->as_json, "As JSON");
  command.runs([stat, &exit_code] { exit_code = run(*stat); });
}

}  // namespace farcall::tool
