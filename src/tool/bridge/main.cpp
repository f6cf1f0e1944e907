// SPDX-License-Identifier: Apache-2.0
//
// The program behind `farcall bridge`.
#include "tool/command.hpp"

int main(int argc, char** argv) {
  using namespace farcall::tool;
  CommandLine line("farcall-bridge", "farcall-bridge", "What `farcall bridge` starts");
  const Command root = line.root();
  root.requires_subcommand();
  int exit_code = kSuccess;
  add_bridge(root, exit_code);
  return line.run(argc, argv, exit_code);
}
