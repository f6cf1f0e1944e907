// SPDX-License-Identifier: Apache-2.0
//
// farcall doctor: why is this not fast?
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "doctor/tree.hpp"
#include "tool/command.hpp"
#include "tool/doctor/examine.hpp"

namespace farcall::tool {
namespace {

struct Options {
  std::vector<std::string> words;
  bool json = false;
};

doctor::Report examine(const std::vector<std::string>& words) {
  if (words.empty()) return doctor::examine_here();
  const auto pid = farcall::doctor::to_number(words.front());
  if (words.size() == 1 && pid && *pid <= INT32_MAX)
    return doctor::examine_running(static_cast<pid_t>(*pid));
#ifdef FARCALL_HAVE_PRELOAD
  return doctor::examine_program(words);
#else
  throw std::runtime_error(
      "this farcall was built without the preload library, and so runs nothing");
#endif
}

}  // namespace

void add_doctor(Command root, int& exit_code) {
  auto options = std::make_shared<Options>();
  const Command command = root.subcommand("doctor", "Tell why something is not fast, and the cure");
  command.flag("--json", options->json, "Print the findings as JSON");
  command
      .option("PID", options->words,
              "A process that runs; or, after --, a program to run and its arguments")
      .suggests("program");
  command.runs([options, &exit_code] {
    const doctor::Report report = examine(options->words);
    fmt::print("{}", options->json ? to_json(report) : to_text(report));
    exit_code = farcall::doctor::anything_wrong(report.findings) ? kFailure : kSuccess;
  });
}

}  // namespace farcall::tool
