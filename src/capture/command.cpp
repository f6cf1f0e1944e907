// SPDX-License-Identifier: Apache-2.0
#include "capture/command.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
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

Command::Command(const std::string& command, void (*before)() noexcept) : mark_(mark()) {
  std::vector<std::string> variables = environment(mark_);
  std::vector<char*> pointers;
  for (std::string& variable : variables) pointers.push_back(variable.data());
  pointers.push_back(nullptr);
  std::string shell = "sh";
  std::string option = "-c";
  std::string text = command;
  char* const arguments[] = {shell.data(), option.data(), text.data(), nullptr};
  // By fork, for posix_spawn(3) makes no signal one that is ignored.
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("start /bin/sh");
  if (pid_ != 0) return;
  ::signal(SIGPIPE, SIG_DFL);  // this command ignores it, for itself alone
  if (before != nullptr) before();
  ::execve("/bin/sh", arguments, pointers.data());
  constexpr int kNotExecuted = 127;  // as a shell says it
  ::_exit(kNotExecuted);
}

bool Command::has_started(pid_t pid) const {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  for (std::string variable; std::getline(file, variable, '\0');)
    if (variable == mark_) return true;
  return false;
}

bool Command::has_ended() {
  if (ended_) return true;
  const pid_t found = ::waitpid(pid_, &status_, WNOHANG);
  // Where somebody else has been told how it ended, it has all the same.
  return ended_ = found == pid_ || (found < 0 && errno == ECHILD);
}

}  // namespace farcall::capture
