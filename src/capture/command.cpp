// SPDX-License-Identifier: Apache-2.0
#include "capture/command.hpp"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <vector>

#include "farcall/error.hpp"
#include "observe/lease.hpp"
#include "observe/tap.hpp"

namespace farcall::capture {
namespace {

// Until when new ends are captured; by then the processes are found.
std::string mark() {
  constexpr std::int64_t kUntilFound = 10'000'000'000;
  std::string text(observe::kTapVariable);
  text += '=';
  text += std::to_string(observe::monotonic_ns() + kUntilFound);
  return text;
}

// The environment, with that.
std::vector<std::string> environment(const std::string& mark) {
  const std::size_t name = mark.find('=') + 1;
  std::vector<std::string> all{mark};
  for (char** at = environ; at != nullptr && *at != nullptr; ++at)
    if (std::strncmp(*at, mark.c_str(), name) != 0) all.emplace_back(*at);
  return all;
}

}  // namespace

Command::Command(const std::string& command) : mark_(mark()) {
  std::vector<std::string> variables = environment(mark_);
  std::vector<char*> pointers;
  for (std::string& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  std::string shell = "sh";
  std::string option = "-c";
  std::string text = command;
  char* const arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  // This command ignores it, for itself alone.
  posix_spawnattr_t attributes;
  sigset_t usual;
  ::sigemptyset(&usual);
  ::sigaddset(&usual, SIGPIPE);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setsigdefault(&attributes, &usual);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  const int error =
      ::posix_spawn(&pid_, "/bin/sh", nullptr, &attributes, arguments, pointers.data());
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) throw SystemError(error, "start /bin/sh");
}

bool Command::has_started(pid_t pid) const {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  for (std::string variable; std::getline(file, variable, '\0');)
    if (variable == mark_) return true;
  return false;
}

bool Command::has_ended() {
  ended_ = ended_ || ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return ended_;
}

}  // namespace farcall::capture
