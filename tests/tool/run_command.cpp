// SPDX-License-Identifier: Apache-2.0
#include "tool/run_command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <system_error>

namespace farcall::test {
namespace {

// Output goes into memory files, so that nobody has to read along.
int memory_file() {
  const int fd = ::memfd_create("output", MFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::system_category(), "memfd_create");
  return fd;
}

std::string contents(int fd) {
  std::string text(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)), '\0');
  if (::pread(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("the output cannot be read");
  return text;
}

}  // namespace

Command::Command(const std::vector<std::string>& arguments, void (*prepare)())
    : out_(memory_file()), err_(memory_file()) {
  std::vector<char*> words{const_cast<char*>(FARCALL_COMMAND)};
  for (const std::string& argument : arguments)
    words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::system_category(), "fork");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(out_, STDOUT_FILENO);
    ::dup2(err_, STDERR_FILENO);
    if (prepare != nullptr) prepare();
    ::execv(FARCALL_COMMAND, words.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);  // by whichever of the two comes first
}

Command::~Command() {
  if (!waited_) {
    ::killpg(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(out_);
  ::close(err_);
}

void Command::kill(int signal) const { ::kill(pid_, signal); }

Finished Command::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0)
    if (errno != EINTR) throw std::system_error(errno, std::system_category(), "waitpid");
  waited_ = true;
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .out = contents(out_),
          .err = contents(err_)};
}

bool Command::left_processes() const {
  return !eventually([&] { return ::killpg(pid_, 0) < 0 && errno == ESRCH; }, 20s);
}

bool Command::has_children() const {
  const std::string pid = std::to_string(pid_);
  return eventually(
      [&] {
        std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
        pid_t child = 0;
        return static_cast<bool>(children >> child);
      },
      20s);
}

Finished run_ignoring_children(const std::vector<std::string>& arguments) {
  return Command(arguments, [] { ::signal(SIGCHLD, SIG_IGN); }).wait();
}

std::string output_of(const std::string& shell_command) {
  std::FILE* const pipe = ::popen(shell_command.c_str(), "r");
  std::string text;
  char bytes[65'536];
  for (std::size_t got; (got = std::fread(bytes, 1, sizeof bytes, pipe)) != 0;)
    text.append(bytes, got);
  ::pclose(pipe);
  return text;
}

}  // namespace farcall::test
