// SPDX-License-Identifier: Apache-2.0
//
// farcall door: looks at doors, calls them, and serves them with a command.
#include "tool/door/door.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tool/command.hpp"

namespace farcall::tool {
namespace {

void add_info(CLI::App& group, int& exit_code) {
  auto targets = std::make_shared<std::vector<std::string>>();
  CLI::App* command = group.add_subcommand("info", "Tell about doors, by path or by process");
  command->add_option("TARGET", *targets, "Paths of doors, or numbers of processes")->required();
  command->callback([targets, &exit_code] {
    exit_code = kSuccess;
    for (const std::string& target : *targets) {
      try {
        fmt::print("{}", door::describe(target));
      } catch (const std::exception& error) {
        fmt::print(stderr, "farcall: {}\n", error.what());
        exit_code = kFailure;
      }
    }
  });
}

void add_call(CLI::App& group, int& exit_code) {
  auto call = std::make_shared<door::Call>();
  CLI::App* command = group.add_subcommand("call", "Call a door and print its reply");
  command->add_option("PATH", call->path, "Where the door is attached")->required();
  command->add_option("DATA", call->data, "The request; without it, all of standard input");
  command->add_option("--wait", call->wait_s, "Wait so many seconds for the door to be attached")
      ->check([](const std::string& text) {
        double seconds = -1;
        if (!CLI::detail::lexical_cast(text, seconds) || !(seconds >= 0))
          return fmt::format("'{}' is no number of seconds", text);
        return std::string();
      });
  command->callback([call, &exit_code] { exit_code = door::call(*call); });
}

void add_serve(CLI::App& group, int& exit_code) {
  auto serve = std::make_shared<door::Serve>();
  CLI::App* command = group.add_subcommand(
      "serve", "Attach a door; each call runs COMMAND with the request as its standard input");
  command->add_option("PATH", serve->path, "Where to attach it; made if it is not there")
      ->required();
  command->add_option("COMMAND", serve->command, "After --: a program and its arguments")
      ->required();
  command->callback([serve, &exit_code] { exit_code = door::serve(*serve); });
}

}  // namespace

void add_door(CLI::App& app, int& exit_code) {
  CLI::App* group = app.add_subcommand("door", "Look at doors, call them, serve them");
  group->require_subcommand(1);
  add_info(*group, exit_code);
  add_call(*group, exit_code);
  add_serve(*group, exit_code);
}

}  // namespace farcall::tool
