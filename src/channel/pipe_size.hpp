// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace farcall::channel {

// Makes a pipe hold `bytes`, as far as the kernel allows (/proc/sys/fs/pipe-max-size and
// pipe-user-pages-soft for those without privileges); 0 leaves it as it is.
void set_pipe_size(int pipe, std::size_t bytes);

}  // namespace farcall::channel
