// SPDX-License-Identifier: Apache-2.0
//
// farcall door: looks at doors, calls them, and serves them with a command.
#include "tool/door/door.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "tool/command.hpp"
#include "tool/say.hpp"

namespace farcall::tool {
namespace {

void add_info(Command group, int& exit_code) {
  auto targets = std::make_shared<std::vector<std::string>>();
  const Command command = group.subcommand("info", "Tell about doors, by path or by process");
  command.option("TARGET", *targets, "Paths of doors, or numbers of processes")
      .required()
      .suggests("file");
  command.runs([targets, &exit_code] {
    exit_code = kSuccess;
    for (const std::string& target : *targets) {
      try {
        fmt::print("{}", door::describe(target));
      } catch (const std::exception& error) {
        say("farcall: {}\n", error.what());
        exit_code = kFailure;
      }
    }
  });
}

void add_call(Command group, int& exit_code) {
  auto call = std::make_shared<door::Call>();
  const Command command = group.subcommand("call", "Call a door and print its reply");
  command.option("PATH", call->path, "Where the door is attached").required().suggests("file");
  command.option("DATA", call->data, "The request; without it, all of standard input");
  command.option("--wait", call->wait_s, "Wait so many seconds for the door to be attached")
      .not_negative();
  command.runs([call, &exit_code] { exit_code = door::call(*call); });
}

void add_serve(Command group, int& exit_code) {
  auto serve = std::make_shared<door::Serve>();
  const Command command = group.subcommand(
      "serve", "Attach a door; each call runs COMMAND with the request as its standard input");
  command.option("PATH", serve->path, "Where to attach it; made if it is not there")
      .required()
      .suggests("file");
  command.option("COMMAND", serve->command, "After --: a program and its arguments")
      .required()
      .suggests("program");
  command.runs([serve, &exit_code] { exit_code = door::serve(*serve); });
}

}  // namespace

void add_door(Command root, int& exit_code) {
  const Command group = root.subcommand("door", "Look at doors, call them, serve them");
  group.requires_subcommand();
  add_info(group, exit_code);
  add_call(group, exit_code);
  add_serve(group, exit_code);
}

}  // namespace farcall::tool
