// SPDX-License-Identifier: Apache-2.0
//
// What `farcall run` does. Failures are exceptions, exit codes those of exit_code.hpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace farcall::tool::run {

class Statistics;
struct Program;

struct Request {
  std::vector<std::string> command;                           // the program and its arguments
  std::vector<std::pair<std::string, std::string>> settings;  // variables and their values
  bool stats = false;                                         // for people, on standard error
  std::string stats_json;                                     // a file, if not empty
};

// Replaces this process by the program; with statistics, runs it as a child and returns how it
// ended. Prints what is wrong and returns kUsage where settings cannot be used, kFailure where the
// library cannot be loaded into the program.
int launch(const Request& request);

// Runs the program as a child into which the library is loaded, which counts in `statistics`, and
// hands on to it the signals that this process gets. Returns its status as waitpid() has it; one
// that could not be executed has said so, and exits with 127. What it prints goes to standard error
// if `to_error`.
int run_counted(const Request& request, const Program& program, const Statistics& statistics,
                bool to_error);

// Prints what launch() would do and what will come of it.
int explain(const Request& request);

}  // namespace farcall::tool::run
