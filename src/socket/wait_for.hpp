// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "farcall/wait.hpp"

namespace farcall {

// Waits until `fd` is ready for `events` of poll(2). Returns false at the deadline. Throws
// SystemError; EINTR where a signal has been caught after `since`.
bool wait_for(int fd, short events, Deadline deadline,
              std::optional<SignalCount> since = std::nullopt);

}  // namespace farcall
