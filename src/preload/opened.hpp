// SPDX-License-Identifier: Apache-2.0
//
// Which numbers are of sockets that this process alone holds, under that one number: socket() has
// returned them here, and since then nobody has copied them. Only they become candidates when they
// are connected, as of a copy that was made before nothing would be known.
#pragma once

#include <cstdint>

namespace farcall::preload {

// To be asked for before the socket is made, so that no fork in between is missed.
std::uint64_t forks_so_far() noexcept;
void note_opened(int fd, std::uint64_t forks) noexcept;

[[nodiscard]] bool is_opened_alone(int fd) noexcept;
// It has been copied, or closed.
void forget_opened(int fd) noexcept;
void forget_all_opened() noexcept;
int highest_opened() noexcept;

}  // namespace farcall::preload
