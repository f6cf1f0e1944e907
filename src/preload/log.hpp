// SPDX-License-Identifier: Apache-2.0
//
// What the library has to say, on standard error, a line at a time.
#pragma once

#include "preload/settings.hpp"

namespace farcall::preload {

// printf without floating point, without locks and without the heap; errno is kept.
[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...) noexcept;

}  // namespace farcall::preload
