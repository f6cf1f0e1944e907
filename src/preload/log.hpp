// SPDX-License-Identifier: Apache-2.0
//
// What the library has to say, on standard error, a line at a time; and only while descriptor 2 is
// still the terminal, pipe or file that it was when the library was loaded. Programs close it and
// open data files and sockets under that number, into which nobody may write. No copy of it is
// kept: who reads the other end of a pipe waits for the last writer to close it.
#pragma once

#include <cstddef>

#include "preload/settings.hpp"

namespace farcall::preload {

// printf without floating point, without locks and without the heap; errno is kept.
[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...) noexcept;

// A line as it is.
void write_to_user(const char* line, std::size_t size) noexcept;

}  // namespace farcall::preload
