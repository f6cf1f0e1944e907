// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>
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

}  // namespace farcall::tool
