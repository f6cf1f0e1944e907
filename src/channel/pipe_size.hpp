// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farcall/channel/mechanism.hpp"

namespace farcall::channel {

// Makes a pipe hold `bytes`, as far as the kernel allows (/proc/sys/fs/pipe-max-size and
// pipe-user-pages-soft for those without privileges); 0 leaves it as it is.
void set_pipe_size(int pipe, std::size_t bytes);

// The handles of a new pipe of the size that `options` ask for. Throws SystemError.
Handles create_pipe(const Options& options);

}  // namespace farcall::channel
