// SPDX-License-Identifier: Apache-2.0
//
// Where the memory of connections is mapped in this process.
#pragma once

#include <cstddef>

namespace farcall::preload {

// Maps the memory of a connection, where an earlier one was if possible; null if that fails.
std::byte* map_connection(std::size_t size, int memory) noexcept;
// Whoever still looks there sees zeroes of its own. Holds life_lock().
void unmap_connection(std::byte* mapping, std::size_t size) noexcept;

}  // namespace farcall::preload
