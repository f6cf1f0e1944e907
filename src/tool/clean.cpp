// SPDX-License-Identifier: Apache-2.0
//
// farcall clean: removes what the kernel keeps of channels whose processes were all killed.
#include "farcall/channel/clean.hpp"

#include <fmt/format.h>

#include <memory>

#include "tool/command.hpp"

namespace farcall::tool {

void add_clean(Command root, int& exit_code) {
  auto dry_run = std::make_shared<bool>(false);
  const Command command =
      root.subcommand("clean", "Remove what is left of channels whose processes were killed");
  command.flag("--dry-run", *dry_run, "Only tell what would be removed");
  command.runs([dry_run, &exit_code] {
    const char* const done = *dry_run ? "would remove" : "removed";
    const std::size_t count = channel::clean_leftovers(
        *dry_run, [&](std::string_view leftover) { fmt::print("{} {}\n", done, leftover); });
    if (count == 0) fmt::print("nothing to clean\n");
    exit_code = kSuccess;
  });
}

}  // namespace farcall::tool
