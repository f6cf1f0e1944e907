// SPDX-License-Identifier: Apache-2.0
#include "capture/command.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "farcall/error.hpp"
#include "observe/tap.hpp"
#include "watch/status.hpp"

namespace farcall::capture {
namespace {

std::uint64_t this_capturer() {
  watch::Status own;
  if (!watch::read_status(::getpid(), own)) throw SystemError(ENOENT, "read /proc/self/status");
  return observe::capturer(::getpid(), own.started);
}

// The environment, with that.
std::vector<std::string> environment(std::uint64_t capturer) {
  const std::string name = std::string(observe::kTapVariable) + '=';
  std::vector<std::string> all{name + std::to_string(capturer)};
  for (char** at = environ; at != nullptr && *at != nullptr; ++at)
    if (std::strncmp(*at, name.c_str(), name.size()) != 0) all.emplace_back(*at);
  return all;
}

}  // namespace

Command::Command(const std::string& command, void (*before)() noexcept)
    : capturer_(this_capturer()) {
  std::vector<std::string> variables = environment(capturer_);
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

bool Command::has_started(const watch::Process& process) const {
  constexpr int kMostGenerations = 64;
  if (process.mark == observe::mark_of(capturer_) || process.pid == pid_) return true;
  pid_t parent = process.parent;
  watch::Status status;
  for (int i = 0; i < kMostGenerations && parent > 1; ++i, parent = status.parent) {
    if (parent == pid_) return true;
    if (!watch::read_status(parent, status)) return false;
  }
  return false;
}

bool Command::has_ended() {
  if (ended_) return true;
  const pid_t found = ::waitpid(pid_, &status_, WNOHANG);
  // Where somebody else has been told how it ended, it has all the same.
  return ended_ = found == pid_ || (found < 0 && errno == ECHILD);
}

}  // namespace farcall::capture
