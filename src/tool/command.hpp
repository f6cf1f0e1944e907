// SPDX-License-Identifier: Apache-2.0
//
// The subcommands of `farcall`, one file each. A command adds itself to the parser and stores its
// exit code; exceptions that it lets through are reported by main as failures.
#pragma once

#include <CLI/CLI.hpp>

namespace farcall::tool {

enum ExitCode : int {
  kSuccess = 0,
  kFailure = 1,  // something could not be done
  kUsage = 2,    // the command line asks for what does not exist
};

void add_compare(CLI::App& app, int& exit_code);
// What compare executes in a process with the preload library; not for users.
void add_compare_slot(CLI::App& app, int& exit_code);
void add_clean(CLI::App& app, int& exit_code);
void add_door(CLI::App& app, int& exit_code);
void add_channel(CLI::App& app, int& exit_code);
void add_run(CLI::App& app, int& exit_code);

}  // namespace farcall::tool
