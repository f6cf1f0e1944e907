// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace farcall::channel {

// The number in a file under /proc/sys; `otherwise` where it cannot be read.
std::size_t kernel_limit(const char* path, std::size_t otherwise);

}  // namespace farcall::channel
