// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>

#include "farcall/socket.hpp"
#include "process/background.hpp"

namespace farcall {

void ReceivedFds::append(ReceivedFds&& more) {
  fds_.reserve(fds_.size() + more.fds_.size());
  std::ranges::move(more.fds_, std::back_inserter(fds_));
  more.fds_.clear();
}

void ReceivedFds::hand_over() noexcept { process::close_later(sender_, std::exchange(fds_, {})); }

}  // namespace farcall
