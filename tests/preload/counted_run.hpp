// SPDX-License-Identifier: Apache-2.0
//
// Runs a program that knows nothing of the library with it, and sees from the library's counters
// what went which way.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "farcall/memory.hpp"
#include "preload/stats.hpp"

namespace farcall::preload {

struct Seen {
  int status;  // as waitpid() says
  std::uint64_t accelerated, ring_bytes, kernel_bytes;
};

// `words` is the program and its arguments. It ends after 100 seconds, with all that it has
// started. What it says goes to `output`.
inline Seen run_counted(const std::vector<std::string>& words,
                        const std::map<std::string, std::string>& environment,
                        int output = STDOUT_FILENO) {
  const SharedMemory file = SharedMemory::create(sizeof(StatsPage));
  void* mapped =
      ::mmap(nullptr, sizeof(StatsPage), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd(), 0);
  EXPECT_NE(mapped, MAP_FAILED);
  const Mapping memory(mapped, sizeof(StatsPage));
  const std::string path =
      "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file.fd());
  auto* page = static_cast<StatsPage*>(mapped);
  page->magic = StatsPage::kMagic;
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    ::dup2(output, STDOUT_FILENO);
    ::alarm(100);
    ::setenv(kStatsVariable, path.c_str(), 1);
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  Seen seen{};
  EXPECT_EQ(::waitpid(child, &seen.status, 0), child);
  ::kill(-child, SIGKILL);  // what it may have left
  for (const StatsPage::Slot& slot : page->slots) {
    seen.accelerated += slot.counters.accelerated;
    seen.ring_bytes += slot.counters.ring.bytes;
    seen.kernel_bytes += slot.counters.kernel.bytes;
  }
  return seen;
}

}  // namespace farcall::preload
