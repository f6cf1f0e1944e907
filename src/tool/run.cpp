// SPDX-License-Identifier: Apache-2.0
//
// farcall run: a program with its local connections on shared memory.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tool/command.hpp"
#include "tool/run/launch.hpp"

namespace farcall::tool {
namespace {

struct Setting {
  const char* option;
  const char* variable;
  const char* help;
  const char* suggested = "";
};

constexpr Setting kSettings[] = {
    {"--accelerate", "FARCALL_ACCELERATE",
     "Only these endpoints, such as 127.0.0.1:6379,*:8000-8999,/run/x.sock (all)"},
    {"--exclude", "FARCALL_EXCLUDE", "Never these endpoints (none)"},
    {"--tcp", "FARCALL_TCP", "Accelerate TCP: yes or no (yes)", "yes no"},
    {"--udp", "FARCALL_UDP", "Accelerate UDP: yes or no (yes)", "yes no"},
    {"--unix", "FARCALL_UNIX", "Accelerate unix sockets: yes or no (yes)", "yes no"},
    {"--users", "FARCALL_USERS", "Share memory with processes of: same, root, any (same)",
     "same root any"},
    {"--ring-bytes", "FARCALL_RING_BYTES", "Bytes per direction of a connection (256K)"},
    {"--ring-size", "FARCALL_RING_SIZE", "The same as messages of --packet-size"},
    {"--packet-size", "FARCALL_PACKET_SIZE", "Bytes of such a message (1500)"},
    {"--max-sockets", "FARCALL_MAX_SOCKETS", "Accelerated connections at once (16384)"},
    {"--log-level", "FARCALL_LOG_LEVEL", "trace, debug, info, warn or error (warn)",
     "trace debug info warn error"},
};

struct Options {
  run::Request request;
  std::optional<std::string> values[std::size(kSettings)];
  bool explain = false;
};

int run_command(Options& options) {
  for (std::size_t i = 0; i < std::size(kSettings); ++i)
    if (options.values[i])
      options.request.settings.emplace_back(kSettings[i].variable, *options.values[i]);
  return options.explain ? run::explain(options.request) : run::launch(options.request);
}

}  // namespace

void add_run(Command root, int& exit_code) {
  auto options = std::make_shared<Options>();
  const Command command =
      root.subcommand("run", "Run a program with its local connections on shared memory");
  command.flag("--stats", options->request.stats,
               "When it has ended, print what became of its connections to standard error");
  command
      .option("--stats-json", options->request.stats_json,
              "When it has ended, write that to this file")
      .suggests("file");
  command.flag("--explain", options->explain, "Tell what would happen, and stop");
  for (std::size_t i = 0; i < std::size(kSettings); ++i)
    command.option(kSettings[i].option, options->values[i], kSettings[i].help)
        .suggests(kSettings[i].suggested);
  command
      .option("PROGRAM", options->request.command,
              "A program and its arguments; -- may stand before it")
      .required()
      .suggests("program");
  command.ends_with_program();
  command.runs([options, &exit_code] { exit_code = run_command(*options); });
}

}  // namespace farcall::tool
