// SPDX-License-Identifier: Apache-2.0
//
// What threads and processes are doing, as their stat files say.
#pragma once

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace farcall::test {

// What the thread or process of that directory in /proc is doing: S for sleep, T, ...; ? where
// there is none.
inline char state_at(const std::string& path) {
  const int fd = ::open((path + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  char text[128]{};
  (void)!::read(fd, text, sizeof text - 1);
  ::close(fd);
  const char* const end = std::strrchr(text, ')');  // of the name, which may have brackets
  return end == nullptr ? '?' : end[2];
}
// A process is its first thread.
inline char state_of(pid_t thread) { return state_at("/proc/" + std::to_string(thread)); }
inline bool is_asleep(pid_t thread) { return state_of(thread) == 'S'; }

}  // namespace farcall::test
