// SPDX-License-Identifier: Apache-2.0
//
// What shells complete command lines of `farcall` with, written from what the command itself knows
// of its subcommands and options.
#pragma once

#include <string>

#include "tool/command.hpp"

namespace farcall::tool::completion {

// Scripts for the shells: bash loads it from bash-completion/completions/farcall, zsh from _farcall
// in its fpath.
std::string bash(const CommandOutline& root);
std::string zsh(const CommandOutline& root);

}  // namespace farcall::tool::completion
