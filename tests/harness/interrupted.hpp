// SPDX-License-Identifier: Apache-2.0
//
// Work that a signal handler interrupts wherever it likes. For children that have one thread which
// takes signals.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace farcall::test {

inline void fork_and_wait() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
}

// Does `work` again and again until a handler has done `handle` so many times, each time after
// another while.
template <class Work>
void interrupted(int times, void (*handle)(), Work work) {
  static void (*what)();
  static std::atomic<int> handled;
  what = handle;
  handled = 0;
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int) {
    const int saved = errno;
    what();
    ++handled;
    errno = saved;
  };
  ASSERT_EQ(::sigaction(SIGALRM, &action, nullptr), 0);
  for (int i = 0; i < times; ++i) {
    const itimerval once{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 20 + i % 100}};
    ASSERT_EQ(::setitimer(ITIMER_REAL, &once, nullptr), 0);
    while (handled == i) work();
  }
}

}  // namespace farcall::test
