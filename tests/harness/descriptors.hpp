// SPDX-License-Identifier: Apache-2.0
//
// What descriptors there are.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace farcall::test {

inline std::size_t count_entries(const std::string& directory) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory)) ++count;
  return count;
}
// Of this process, without the one that looks.
inline std::size_t open_descriptors() { return count_entries("/proc/self/fd") - 1; }
// For messages: what they refer to.
inline std::string list_descriptors() {
  std::string all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    all += entry.path().filename().string() + ": " +
           std::filesystem::read_symlink(entry.path(), gone).string() + "\n";
  }
  return all;
}

// Descriptors that are on their way to a process: sent, and not received.
inline int on_their_way_to(pid_t process) {
  int count = 0;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fdinfo", gone)) {
    std::ifstream lines(entry.path());
    for (std::string word; lines >> word;)
      if (int here = 0; word == "scm_fds:" && lines >> here) count += here;
  }
  return count;
}

}  // namespace farcall::test
