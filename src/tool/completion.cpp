// SPDX-License-Identifier: Apache-2.0
//
// farcall completion: prints what a shell completes command lines with.
#include "tool/completion/completion.hpp"

#include <fmt/format.h>

#include <memory>
#include <string>

#include "tool/command.hpp"

namespace farcall::tool {

void add_completion(Command root, int& exit_code) {
  auto shell = std::make_shared<std::string>();
  const Command command =
      root.subcommand("completion", "Print what a shell completes command lines with");
  command.option("SHELL", *shell, "bash or zsh")
      .required()
      .suggests("bash zsh")
      .checked([](const std::string& text) {
        return text == "bash" || text == "zsh" ? std::string()
                                               : fmt::format("'{}' is neither bash nor zsh", text);
      });
  command.runs([root, shell, &exit_code] {
    const CommandOutline outline = root.outline();
    fmt::print("{}", *shell == "bash" ? completion::bash(outline) : completion::zsh(outline));
    exit_code = kSuccess;
  });
}

}  // namespace farcall::tool
