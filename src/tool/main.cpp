// SPDX-License-Identifier: Apache-2.0
//
// The farcall command.
#include <fmt/format.h>

#include <exception>

#include "tool/command.hpp"

int main(int argc, char** argv) {
  using namespace farcall::tool;
  CLI::App app{"farcall: calls and streams between processes at the price of a cache miss"};
  app.name("farcall");
  app.set_version_flag("--version", "farcall " FARCALL_VERSION);
  app.require_subcommand(1);
  int exit_code = kSuccess;
  add_compare(app, exit_code);
  add_compare_slot(app, exit_code);
  add_clean(app, exit_code);
#ifdef FARCALL_HAVE_PRELOAD
  add_run(app, exit_code);
#endif
#ifdef FARCALL_HAVE_DOORS
  add_door(app, exit_code);
#endif
#ifdef FARCALL_HAVE_MESSAGES
  add_channel(app, exit_code);
#endif
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    // Prints the help that was asked for, or what is wrong.
    return app.exit(error) == 0 ? kSuccess : kUsage;
  } catch (const std::exception& error) {
    fmt::print(stderr, "farcall: {}\n", error.what());
    return kFailure;
  }
}
