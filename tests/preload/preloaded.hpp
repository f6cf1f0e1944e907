// SPDX-License-Identifier: Apache-2.0
//
// For tests that run plain and with the library preloaded.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "harness/thread_state.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

inline bool preloaded() { return std::getenv("LD_PRELOAD") != nullptr; }

// Whether this program was called with that argument.
inline bool has_argument(const std::string& wanted) {
  std::ifstream file("/proc/self/cmdline");
  for (std::string argument; std::getline(file, argument, '\0');)
    if (argument == wanted) return true;
  return false;
}

// A test that is named for the library must not pass because it is not there.
inline const bool kAsNamed = [] {
  if (has_argument("--preloaded") && !preloaded()) {
    std::fputs("the library is not preloaded\n", stderr);
    std::abort();
  }
  return true;
}();

// How many mappings of memory with that name this process has.
inline int shared_mappings(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:" + name) != std::string::npos) ++count;
  return count;
}

// A number that /proc/self/status has under that name, of kilobytes where it is of memory.
inline long number_in_status(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(name + ":", 0) == 0) return std::stol(line.substr(name.size() + 1));
  ADD_FAILURE() << name;
  return 0;
}

// Returns when that thread of this process sleeps in the kernel, or after a long while.
inline void await_sleep(long thread) {
  for (int i = 0; i < 20'000; ++i) {
    ::usleep(1000);
    if (test::is_asleep(static_cast<pid_t>(thread))) return;
  }
}

// Whether the kernel itself knows of something to read; asked so that no library sees it.
inline bool readable_for_kernel(int fd) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  const timespec none{};
  return kernel(SYS_ppoll, &wait, 1, &none, nullptr, kKernelMaskSize) == 1;
}

}  // namespace farcall::preload
