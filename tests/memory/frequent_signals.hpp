// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/time.h>

namespace farcall::test {

// Signals that come often, as long as this lives.
class FrequentSignals {
 public:
  FrequentSignals() {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &action, &before_);
    const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 100},
                          .it_value = {.tv_sec = 0, .tv_usec = 100}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~FrequentSignals() {
    const itimerval none{};
    ::setitimer(ITIMER_REAL, &none, nullptr);
    ::sigaction(SIGALRM, &before_, nullptr);
  }
  FrequentSignals(const FrequentSignals&) = delete;
  FrequentSignals& operator=(const FrequentSignals&) = delete;

 private:
  struct sigaction before_ {};
};

}  // namespace farcall::test
