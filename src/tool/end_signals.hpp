// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <ctime>
#include <vector>

namespace farcall::tool {

// The signals that end a command which goes on until it is told to end. Those that were ignored
// when it began, as nohup(1) and shells leave them, are to stay so.
inline std::vector<int> end_signals() {
  std::vector<int> signals;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      signals.push_back(signal);
  }
  return signals;
}

// Blocks them, for the thread that makes this and those it makes then, and waits for one.
class EndSignals {
 public:
  EndSignals() {
    ::sigemptyset(&set_);
    for (const int signal : end_signals()) ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  void wait() const {
    int signal = 0;
    while (::sigwait(&set_, &signal) != 0) continue;
  }
  // Whether one came within so many milliseconds.
  [[nodiscard]] bool wait_ms(long ms) const {
    const timespec time{.tv_sec = 0, .tv_nsec = ms * 1'000'000};
    return ::sigtimedwait(&set_, nullptr, &time) > 0;
  }

 private:
  sigset_t set_{};
};

}  // namespace farcall::tool
