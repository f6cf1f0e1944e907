// SPDX-License-Identifier: Apache-2.0
//
// What this process uses, to see that it does not grow.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

#include "harness/descriptors.hpp"
#include "harness/eventually.hpp"

namespace farcall::test {

inline std::size_t threads() { return count_entries("/proc/self/task"); }
// Without those that the library has for itself, which come and go as it likes.
inline std::size_t threads_of_program() {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;  // empty if it has just ended
    std::ifstream(entry.path() / "comm") >> name;
    if (!name.empty() && !name.starts_with("farcall-")) ++count;
  }
  return count;
}

struct Usage {
  std::size_t descriptors = open_descriptors();
  std::size_t threads_running = threads();
  std::size_t mappings = lines("/proc/self/maps");
  std::size_t resident = resident_bytes();

  static std::size_t lines(const char* path) {
    std::ifstream file(path);
    std::string line;
    std::size_t count = 0;
    while (std::getline(file, line)) ++count;
    return count;
  }
  static std::size_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    std::size_t total = 0;
    std::size_t resident = 0;
    file >> total >> resident;
    return resident * 4096;
  }
};

// Expects that this process uses no more than before, once all that it does for others is over.
// A few threads more may have been needed at once, for clients that were dead already, and stay;
// the more so the more rounds there are. Who leaks has one for each of a thousand rounds.
inline void expect_no_growth(const Usage& before, std::size_t more_threads = 12) {
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before.descriptors; }))
      << open_descriptors() << " descriptors instead of " << before.descriptors;
  EXPECT_LE(threads(), before.threads_running + more_threads);
  if (kSlow > 1) return;  // sanitizers keep what is freed
  EXPECT_LE(Usage::lines("/proc/self/maps"), before.mappings + 40 + 4 * more_threads);
  EXPECT_LE(Usage::resident_bytes(), before.resident + (24U << 20));
}

}  // namespace farcall::test
