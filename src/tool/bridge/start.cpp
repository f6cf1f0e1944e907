// SPDX-License-Identifier: Apache-2.0
//
// farcall bridge: becomes the program that serves.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "process/programs.hpp"
#include "tool/bridge/bridge.hpp"
#include "tool/say.hpp"

namespace farcall::tool::bridge {
namespace {

// As this one was started, with another name for the program.
std::vector<std::string> words() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> all;
  for (std::string word; std::getline(file, word, '\0');) all.push_back(word);
  return all;
}

}  // namespace

ExitCode run(const Options&) {
  const std::vector<std::string> all = words();
  const auto program = process::beside_program(
      {"farcall-bridge", "../libexec/farcall/farcall-bridge", "../lib/farcall/farcall-bridge"},
      X_OK);
  ::execv(program.c_str(), process::arguments_of(all).data());
  say("farcall: the bridge is not here: {} (install the package farcall-bridge, or build "
      "with libnats-dev and libtomlplusplus-dev)\n",
      ::strerrorname_np(errno));
  return kFailure;
}

}  // namespace farcall::tool::bridge
