// SPDX-License-Identifier: Apache-2.0
//
// farcall compare: what every way between two processes costs on this machine.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "compare/environment.hpp"
#include "compare/plot.hpp"
#include "compare/preloaded.hpp"
#include "compare/report.hpp"
#include "compare/selection.hpp"
#include "compare/supervisor.hpp"
#include "compare/units.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"
#include "tool/command.hpp"
#include "tool/say.hpp"

namespace farcall::tool {
namespace {

using namespace compare;

struct Options {
  std::string workload = "pair";
  std::vector<std::string> rows{"all"};
  // Empty: what suits the workload.
  std::vector<std::string> sizes;
  std::vector<std::string> placements;
  std::vector<std::string> readers;
  std::vector<std::string> clients;
  std::vector<std::string> pairs;
  unsigned idle = 0;
  std::vector<std::string> waits;
  bool quick = false;
  bool list = false;
  std::string json;
  std::string picture;
  std::string depth;
  unsigned rounds = 0;
  unsigned budget_ms = 0;
  std::uint64_t seed = 1;
};

int list_rows(const RowList& list) {
  for (const auto& row : list.rows) {
    const RowInfo& info = row->info();
    fmt::print("{:<18} {:<9} {:<8} {}\n", info.mechanism, info.engine, info.wait, info.description);
  }
  for (const AbsentRow& row : list.absent)
    fmt::print("{:<18} {:<9} {:<8} {}\n", row.mechanism, "absent", "", row.reason);
  return kSuccess;
}

// Those that have a meaning in one workload alone.
void refuse_others(const Options& options, Workload workload) {
  if (workload != Workload::broadcast && !options.readers.empty())
    throw UsageError("--readers is for --workload broadcast");
  if (workload == Workload::scaling) return;
  if (!options.clients.empty()) throw UsageError("--clients is for --workload scaling");
  if (!options.pairs.empty()) throw UsageError("--pairs is for --workload scaling");
  if (options.idle != 0) throw UsageError("--idle is for --workload scaling");
}

// What two processes exchange, in what sizes and where.
void set_pair(Settings& settings, const Options& options) {
  settings.sizes = parse_sizes(
      options.sizes.empty() ? std::vector<std::string>{"8", "64", "1K", "8K", "64K", "1M", "16M"}
                            : options.sizes);
  settings.placements = parse_placements(
      options.placements.empty() ? std::vector<std::string>{"two-cpus", "one-cpu", "free"}
                                 : options.placements);
}

// Of more than two processes: messages have room for a number, by which is seen whose they are and
// what is missing.
void set_many(Settings& settings, const Options& options, std::string_view whose) {
  settings.sizes =
      parse_sizes(options.sizes.empty() ? std::vector<std::string>{"64"} : options.sizes);
  constexpr std::size_t kLeast = 8;
  constexpr std::size_t kMost = std::size_t{1} << 20;
  if (settings.sizes.front() < kLeast || settings.sizes.back() > kMost)
    throw UsageError(fmt::format("messages of {} have 8 bytes to 1M here", whose));
  settings.placements = parse_placements(
      options.placements.empty() ? std::vector<std::string>{"free"} : options.placements);
  if (settings.placements != std::vector{Placement::free})
    throw UsageError(
        fmt::format("the processes of {} are placed by the scheduler: --placement free", whose));
}

// Of each row once, in the size and the placement of most programs: nothing depends on them.
void set_dead_peer(Settings& settings, const Options& options) {
  if (!options.picture.empty()) throw UsageError("there is no --plot of --workload dead-peer");
  settings.dead_peer = true;
  settings.sizes =
      parse_sizes(options.sizes.empty() ? std::vector<std::string>{"64"} : options.sizes);
  settings.placements = parse_placements(
      options.placements.empty() ? std::vector<std::string>{"free"} : options.placements);
}

void set_scaling(Settings& settings, const Options& options) {
  set_many(settings, options, "many clients");
  if (options.idle != 0) {
    if (!options.clients.empty() || !options.pairs.empty())
      throw UsageError("--idle has one client of its own; leave --clients and --pairs out");
    settings.crowds = {{.clients = 1, .servers = 1, .idle = options.idle}};
    return;
  }
  const bool both = options.clients.empty() && options.pairs.empty();
  settings.crowds = parse_crowds(
      both ? std::vector<std::string>{"1", "2", "4", "8", "16", "32", "64"} : options.clients,
      both ? std::vector<std::string>{"1", "2", "4", "8", "16"} : options.pairs);
}

void set_broadcast(Settings& settings, const Options& options) {
  set_many(settings, options, "a broadcast");
  settings.readers = parse_readers(
      options.readers.empty() ? std::vector<std::string>{"1", "4", "16"} : options.readers);
}

Settings settings_of(const Options& options, Selection& selection) {
  Settings settings;
  settings.rows = std::move(selection.rows);
  const Workload workload = parse_workload(options.workload);
  refuse_others(options, workload);
  if (workload == Workload::broadcast)
    set_broadcast(settings, options);
  else if (workload == Workload::scaling)
    set_scaling(settings, options);
  else if (workload == Workload::dead_peer)
    set_dead_peer(settings, options);
  else
    set_pair(settings, options);
  settings.effort = options.budget_ms != 0          ? Effort::tiny(options.budget_ms * 1'000'000LL)
                    : workload == Workload::scaling ? Effort::scaling(options.quick)
                    : options.quick                 ? Effort::quick()
                                                    : Effort::full();
  if (workload == Workload::dead_peer) settings.effort.rounds = 1;
  if (options.rounds != 0) settings.effort.rounds = options.rounds;
  settings.quick = options.quick;
  settings.seed = options.seed;
  if (!options.depth.empty()) {
    const auto depth = parse_size(options.depth);
    if (!depth || *depth == 0)
      throw UsageError(fmt::format("\"{}\" is no depth; depths are like 4K, 1M", options.depth));
    settings.depth_bytes = *depth;
  }
  return settings;
}

// Fails at once, not after minutes, where the file cannot be written; creates nothing yet.
void require_writable(const std::string& path) {
  const auto parent = std::filesystem::absolute(path).parent_path();
  if (std::filesystem::is_directory(path)) throw SystemError(EISDIR, "write " + path);
  const bool exists = ::access(path.c_str(), F_OK) == 0;
  if (::access(exists ? path.c_str() : parent.c_str(), W_OK) != 0)
    throw SystemError(errno, "write " + path);
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw SystemError(errno, "write " + path);
}

// The plot needs the report as a file; memory does, where the user did not ask for one.
void plot_report(const std::string& report, const std::string& picture) {
  const UniqueFd memory(::memfd_create("farcall-report", 0));
  if (!memory) throw_errno("memfd_create");
  if (::write(memory.get(), report.data(), report.size()) != static_cast<ssize_t>(report.size()))
    throw_errno("write the report");
  plot(fmt::format("/proc/self/fd/{}", memory.get()), picture);
}

template <class Body>
std::exception_ptr failure_of(Body body) {
  try {
    body();
    return nullptr;
  } catch (const std::exception&) {
    return std::current_exception();
  }
}

void tell(std::FILE* out, const Comparison& comparison, const Machine& machine) {
  std::string text = report_table(comparison, machine, ::isatty(::fileno(out)) != 0);
  const auto sentences = explain(comparison);
  if (!sentences.empty()) text += "\n";
  for (const std::string& sentence : sentences) text += sentence + "\n";
  // One that cannot be written to is told of at the end.
  (void)std::fwrite(text.data(), 1, text.size(), out);
}

int compare_rows(const Options& options, const RowList& list) {
  Selection selection = select_rows(list, options.rows, options.waits);
  const bool json_to_stdout = options.json == "-";
  const Settings settings = settings_of(options, selection);
  if (!options.picture.empty()) {
    require_plotting();
    require_writable(options.picture);
  }
  const bool json_to_file = !options.json.empty() && !json_to_stdout;
  if (json_to_file) require_writable(options.json);

  const Processors processors;
  const Machine machine = describe_machine(processors);
  const Comparison comparison = run_comparison(settings, processors, std::move(selection.absent));

  // What was measured for minutes is kept before it is told: who is to hear may have gone.
  const std::string report = report_json(comparison, machine);
  const std::exception_ptr lost = failure_of([&] {
    if (json_to_file) write_file(options.json, report);
    if (!options.picture.empty()) plot_report(report, options.picture);
  });
  if (json_to_stdout) (void)std::fwrite(report.data(), 1, report.size(), stdout);
  tell(json_to_stdout ? stderr : stdout, comparison, machine);
  if (lost) std::rethrow_exception(lost);
  if (!comparison.results.empty()) return comparison.any_failed() ? kFailure : kSuccess;
  say("farcall compare: nothing was measured: {}\n", why_nothing(comparison));
  return kFailure;
}

int compare_command(const Options& options) {
  begin_without_library();
  try {
    const RowList list = all_rows(parse_workload(options.workload));
    if (options.list) return list_rows(list);
    // A peer that goes away is an error that calls report.
    ::signal(SIGPIPE, SIG_IGN);
    return compare_rows(options, list);
  } catch (const UsageError& error) {
    say("farcall compare: {}\n", error.what());
    return kUsage;
  } catch (const Interrupted& interrupted) {
    say("farcall compare: interrupted\n");
    return 128 + interrupted.signal;
  }
}

}  // namespace

void add_compare(Command root, int& exit_code) {
  auto options = std::make_shared<Options>();
  const Command command = root.subcommand(
      "compare", "Measure what every way between two processes costs on this machine");
  const auto add_list = [&](const char* name, std::vector<std::string>& values, const char* help,
                            const char* suggested) {
    command.option(name, values, help).separated_by_commas().shows_default().suggests(suggested);
  };
  command
      .option("--workload", options->workload,
              "What is measured: pair (calls and streams between two processes), or broadcast (one "
              "writer tells many readers), or scaling (many clients call), or dead-peer (a server "
              "is killed)")
      .shows_default()
      .suggests("pair broadcast scaling dead-peer");
  add_list("--rows", options->rows,
           "Mechanisms, or groups of them: all, main, controls, channels, shared, linux, kernel, "
           "peers",
           "all main controls channels shared linux kernel peers");
  add_list("--sizes", options->sizes,
           "Message sizes in bytes, from 0 (8,64,1K,8K,64K,1M,16M; of broadcast and scaling 64)",
           "");
  add_list("--placement", options->placements,
           "Where the two sides run: two-cpus, one-cpu, free (all; of broadcast and scaling free)",
           "two-cpus one-cpu free");
  add_list("--readers", options->readers,
           "Of a broadcast: how many readers there are, up to 64 (1,4,16)", "1 4 16");
  add_list("--clients", options->clients,
           "Of scaling: how many clients one server has, up to 64 (1,2,4,8,16,32,64)", "1 4 16 64");
  add_list("--pairs", options->pairs,
           "Of scaling: how many clients have a server each, up to 64 (1,2,4,8,16)", "1 4 16");
  command
      .option("--idle", options->idle,
              "Of scaling: one client among so many idle connections to its server")
      .between(1, static_cast<int>(kMostIdle));
  add_list("--wait", options->waits,
           "Ways of waiting, for rows that have several: spin, adaptive, block (all)",
           "spin adaptive block");
  command.flag("--quick", options->quick, "Fewer samples: about a second per row");
  command.option("--json", options->json, "Write the figures to this file, - for stdout")
      .suggests("file");
  command.option("--plot", options->picture, "Draw the figures into this PNG file")
      .suggests("file");
  command.flag("--list", options->list, "List the rows and stop");
  command.option("--depth", options->depth,
                 "How many bytes the channels hold (each mechanism's own default)");
  command
      .option("--rounds", options->rounds,
              "How often all rows are measured in turn (5; 1 of dead-peer; of scaling 3 with "
              "--quick, 2 with --budget)")
      .between(1, 1000);
  command
      .option("--budget", options->budget_ms,
              "Milliseconds per row and round, instead of --quick's or the default")
      .between(1, 60'000);
  command.option("--seed", options->seed, "For the order of rows and the payload")
      .shows_default()
      .not_negative();
  command.runs([options, &exit_code] { exit_code = compare_command(*options); });
}

void add_compare_slot(Command root, int& exit_code) {
  auto plan = std::make_shared<int>(-1);
  const Command command = root.hidden_subcommand("compare-slot");
  command.option("PLAN", *plan, "").required();
  command.runs([plan, &exit_code] {
    ::signal(SIGPIPE, SIG_IGN);
    exit_code = slot_main(*plan);
  });
}

}  // namespace farcall::tool
