// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace farcall {

// Says of a signal whether whatever handles it calls note_signal() first. Set by libraries that see
// to that; null where none does.
using CountsHandler = bool(int number) noexcept;
extern constinit std::atomic<CountsHandler*> counts_handler;

}  // namespace farcall
