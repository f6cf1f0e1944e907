// SPDX-License-Identifier: Apache-2.0
//
// What channels can leave behind. Descriptors and memory go with their processes; three things have
// names for a while:
//
//   System V message queues      while they are used; they stay if both ends are killed
//   directories of FIFOs         for the moment in which a channel is made
//   names of POSIX queues        the same
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace farcall::channel {

// Removes this user's leftovers that nobody uses, never anything else, and calls `report` with a
// description of each; with `dry_run` finds them only. Returns how many. Throws SystemError.
std::size_t clean_leftovers(bool dry_run, const std::function<void(std::string_view)>& report = {});

}  // namespace farcall::channel
