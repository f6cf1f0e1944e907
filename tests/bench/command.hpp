// SPDX-License-Identifier: Apache-2.0
//
// A shell command, what it said and how it ended; and a directory that goes with the test.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace farcall {

struct CommandResult {
  int code;  // 128 + the signal if one ended it
  std::string said;
};

inline CommandResult run_command(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");  // NOLINT: paths are ours
  if (pipe == nullptr) return {127, "popen failed"};
  std::string said;
  std::array<char, 4096> piece;
  while (const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe))
    said.append(piece.data(), count);
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), said};
}

inline std::string file_contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = testing::TempDir() + "farcall-bench-XXXXXX";
    if (::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace farcall
