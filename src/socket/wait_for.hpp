// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <optional>

#include "farcall/wait.hpp"

namespace farcall {

// Waits until `fd` is ready for `events` of poll(2). Returns false at the deadline. Throws
// SystemError; EINTR where a signal has been caught after `since`.
bool wait_for(int fd, short events, Deadline deadline,
              std::optional<SignalCount> since = std::nullopt);

// What poll(2) tells of these events now; beside them POLLHUP, POLLERR and POLLNVAL.
inline short events_now(int fd, short events) noexcept {
  pollfd entry{.fd = fd, .events = events, .revents = 0};
  return ::poll(&entry, 1, 0) > 0 ? entry.revents : short{0};
}

}  // namespace farcall
