// SPDX-License-Identifier: Apache-2.0
#include "compare/plot.hpp"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <vector>

#include "process/programs.hpp"

namespace farcall::compare {
namespace {

constexpr const char* kPython = "/usr/bin/python3";  // Debian's: its packages are what we name
constexpr const char* kScript = "plot_compare.py";

// The exit code of a command, or 127 where it does not exist.
int run(const std::vector<std::string>& words) {
  pid_t pid = 0;
  if (::posix_spawn(&pid, words[0].c_str(), nullptr, nullptr, process::arguments_of(words).data(),
                    environ) != 0)
    return 127;
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Beside an installed farcall, or in the sources it was built from.
std::filesystem::path script() {
  const auto found =
      process::beside_program({std::filesystem::path("../share/farcall") / kScript,
                               std::filesystem::path(FARCALL_PLOT_SCRIPTS) / kScript},
                              F_OK);
  if (!found.empty()) return found;
  throw std::runtime_error(fmt::format("{} is missing from this installation", kScript));
}

}  // namespace

void require_plotting() {
  script();
  if (run({kPython, "-c",
           "import importlib.util, sys; sys.exit(importlib.util.find_spec('matplotlib') is "
           "None)"}) != 0)
    throw std::runtime_error(
        "plots are drawn by Python with matplotlib; install the package python3-matplotlib");
}

void plot(const std::string& json, const std::string& picture) {
  if (const int code = run({kPython, script(), json, picture}); code != 0)
    throw std::runtime_error(fmt::format("{} failed with exit code {}", kScript, code));
}

}  // namespace farcall::compare
