// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace farcall {

// Has the kernel find room for all of a file, whatever signals come. Returns 0 or an errno.
int allocate_file(int fd, std::size_t size) noexcept;

}  // namespace farcall
