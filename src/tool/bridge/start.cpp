// SPDX-License-Identifier: Apache-2.0
//
// farcall bridge: becomes the program that serves.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>

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
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  std::vector<std::string> all = words();
  std::vector<char*> arguments;
  for (std::string& word : all) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  for (const auto& place : {here / "farcall-bridge", here / "../libexec/farcall/farcall-bridge",
                            here / "../lib/farcall/farcall-bridge"})
    ::execv(place.c_str(), arguments.data());
  say("farcall: the bridge is not here: {} (install the package farcall-bridge, or build "
      "with libnats-dev and libtomlplusplus-dev)\n",
      ::strerrorname_np(errno));
  return kFailure;
}

}  // namespace farcall::tool::bridge
