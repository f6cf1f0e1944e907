// SPDX-License-Identifier: Apache-2.0
//
// The program behind `farcall bridge`.
#include <fmt/format.h>

#include <exception>

#include "tool/command.hpp"
#include "tool/say.hpp"

int main(int argc, char** argv) {
  using namespace farcall::tool;
  CommandLine line("farcall-bridge", "farcall-bridge", "What `farcall bridge` starts");
  const Command root = line.root();
  root.requires_subcommand();
  int exit_code = kSuccess;
  add_bridge(root, exit_code);
  try {
    const std::optional<ExitCode> nothing_to_run = line.run(argc, argv);
    return nothing_to_run ? *nothing_to_run : exit_code;
  } catch (const std::exception& error) {
    say("farcall: {}\n", error.what());
    return kFailure;
  }
}
