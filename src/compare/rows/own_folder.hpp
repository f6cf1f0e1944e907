// SPDX-License-Identifier: Apache-2.0
//
// For peers whose files have names and stay when their processes are killed.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "compare/pipe.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {

// A folder that nobody else has, and in which nobody else writes: a new one in that of temporary
// files, whose name begins with `prefix`. It is removed when all processes that have this have
// ended or destroyed it, in whatever way; `also` removes what else is named after it. A process of
// its own makes and removes it, so that there is no moment at which nobody would; who made this
// waits for that process. For a process with one thread. Throws SystemError.
class OwnFolder {
 public:
  using Also = std::function<void(const std::filesystem::path&)>;
  explicit OwnFolder(const std::string& prefix, const Also& also = {}) : owner_(::getpid()) {
    auto [its_alive, mine] = make_pipe();
    auto [its_path, its_news] = make_pipe();
    mine_ = std::move(mine);
    pid_ = ::fork();
    if (pid_ < 0) throw_errno("fork");
    if (pid_ == 0) keep(its_alive.get(), its_news.get(), prefix, also);
    its_news.reset();
    char text[PATH_MAX];
    for (ssize_t got = 0; (got = ::read(its_path.get(), text, sizeof text)) != 0;)
      if (got > 0) path_.append(text, static_cast<std::size_t>(got));
    if (!path_.empty()) return;
    throw SystemError(wait(), "make a folder for temporary files");
  }
  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;
  ~OwnFolder() {
    mine_.reset();
    if (::getpid() == owner_) wait();
  }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  // Returns its exit status.
  int wait() const noexcept {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
  }

  static std::string pattern(const std::string& prefix) {
    constexpr std::size_t kMost = 90;  // names in it have to be addresses of sockets
    std::error_code error;
    std::string path = std::filesystem::temp_directory_path(error) / (prefix + "XXXXXX");
    return error || path.size() > kMost ? "/tmp/" + prefix + "XXXXXX" : path;
  }

  // Outlives the tool, if that is how it ends, and keeps nothing of it: other ends of sockets, by
  // which those that measure tell that they have gone. What all of the tool's group are sent,
  // SIGKILL even, is not for it.
  [[noreturn]] static void keep(int alive, int news, const std::string& prefix, const Also& also) {
    ::setsid();
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGQUIT}) ::signal(signal, SIG_IGN);
    ::dup2(alive, STDIN_FILENO);
    ::dup2(news, STDOUT_FILENO);
    ::close_range(STDERR_FILENO + 1, ~0U, 0);
    std::string path = pattern(prefix);
    if (::mkdtemp(path.data()) == nullptr) ::_exit(errno);
    // Where nobody takes it, the next read tells that there is nobody.
    (void)!::write(STDOUT_FILENO, path.data(), path.size());
    ::close(STDOUT_FILENO);
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) {
    }
    if (also) also(path);
    remove(path);
    ::_exit(0);
  }
  // A server that is being killed may still write there.
  static void remove(const std::filesystem::path& path) {
    for (int tries = 0; tries < 50; ++tries) {
      std::error_code error;
      std::filesystem::remove_all(path, error);
      if (!error) return;
      ::usleep(10'000);
    }
  }

  pid_t owner_;
  pid_t pid_ = -1;
  UniqueFd mine_;
  std::string path_;
};

}  // namespace farcall::compare
