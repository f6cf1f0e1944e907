// SPDX-License-Identifier: Apache-2.0
#include "compare/children.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace farcall::compare {

// Not all kernels have /proc/PID/task/TID/children.
std::set<OtherChildren::Child> OtherChildren::list() {
  std::set<Child> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "stat");  // none where it has ended
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::size_t command = text.rfind(')');  // which may have anything before that
    if (command == std::string::npos) continue;
    int parent = 0;
    unsigned long long began = 0;
    constexpr const char* kFields =
        ") %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu";
    if (std::sscanf(text.c_str() + command, kFields, &parent, &began) != 2) continue;
    if (parent == ::getpid()) children.emplace(std::atoi(name.c_str()), began);
  }
  return children;
}

void OtherChildren::note() {
  others_.clear();
  siginfo_t info;
  const int any = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT | __WALL);
  if (any != 0 && errno == ECHILD) return;
  others_ = list();
}

bool OtherChildren::has_more() const noexcept {
  if (others_.empty()) return true;
  try {
    return !std::ranges::includes(others_, list());
  } catch (const std::exception&) {
    return true;  // who waits has a bound
  }
}

}  // namespace farcall::compare
