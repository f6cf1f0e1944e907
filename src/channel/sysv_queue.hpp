// SPDX-License-Identifier: Apache-2.0
//
// System V queues that can be recognised as ours, and whether anybody still uses one.
//
//   key    31       20 19     14 13           0      mode 0711: the x bits mean nothing to a queue
//          | 0xFCA   | network | chance       |      and nobody else sets them
//
// Whoever holds an end holds a socket bound to the abstract unix name of its key, so the name is
// gone when the last of them is. Such names belong to a network namespace while queues belong to
// an IPC namespace: six bits of the key tell the network namespaces apart that share queues.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "farcall/memory.hpp"

namespace farcall::channel::sysv_queue {

struct Name {
  key_t key = 0;
  UniqueFd hold;
};
// A key that no queue has and no other end holds. Throws SystemError.
Name reserve();

// The queue of this key, made if it does not exist. Throws SystemError: EEXIST if it is not ours.
int open(key_t key, std::size_t bytes);
void remove(int queue) noexcept;

// The longest message there can be.
std::size_t longest_message();

// Removes this user's queues that nobody holds, or with dry_run only finds them; reports each.
// Returns how many. Throws SystemError.
std::size_t clean(bool dry_run, const std::function<void(std::string_view)>& report);

}  // namespace farcall::channel::sysv_queue
