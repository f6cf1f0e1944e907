// SPDX-License-Identifier: Apache-2.0
//
// The farcall command.
#include "tool/child_signal.hpp"
#include "tool/command.hpp"

int main(int argc, char** argv) {
  using namespace farcall::tool;
  expect_children();
  CommandLine line("farcall", "farcall " FARCALL_VERSION,
                   "farcall: calls and streams between processes at the price of a cache miss");
  const Command root = line.root();
  root.requires_subcommand();
  int exit_code = kSuccess;
  add_compare(root, exit_code);
  add_compare_slot(root, exit_code);
  add_capture(root, exit_code);
  add_clean(root, exit_code);
  add_doctor(root, exit_code);
#ifdef FARCALL_HAVE_PRELOAD
  add_run(root, exit_code);
#endif
#ifdef FARCALL_HAVE_DOORS
  add_door(root, exit_code);
#endif
#ifdef FARCALL_HAVE_MESSAGES
  add_channel(root, exit_code);
#endif
#ifdef FARCALL_HAVE_BRIDGE
  add_bridge(root, exit_code);
#endif
  add_stat(root, exit_code);
  add_top(root, exit_code);
  add_completion(root, exit_code);
  return line.run(argc, argv, exit_code);
}
