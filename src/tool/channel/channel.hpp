// SPDX-License-Identifier: Apache-2.0
//
// farcall channel: what can be asked about channels, and how to send to one.
#pragma once

#include <optional>
#include <string>

namespace farcall::tool::channel {

// Prints all channels with names; with `threads` also who waits for whom. Returns the exit code.
int list(bool threads);

struct Send {
  std::string name;
  std::optional<std::string> data;  // without: standard input
  bool one_way = false;
  double timeout_s = 10;
  std::optional<int> pulse;  // a code, in place of a message
  long long value = 0;       // of the pulse
};
int send(const Send& send);

}  // namespace farcall::tool::channel
