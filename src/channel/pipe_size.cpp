// SPDX-License-Identifier: Apache-2.0
#include "channel/pipe_size.hpp"

#include <fcntl.h>

#include <algorithm>
#include <climits>

#include "channel/kernel_limit.hpp"

namespace farcall::channel {

void set_pipe_size(int pipe, std::size_t bytes) {
  if (bytes == 0) return;
  const auto ask = [pipe](std::size_t wanted) {
    return ::fcntl(pipe, F_SETPIPE_SZ, static_cast<int>(std::min<std::size_t>(wanted, INT_MAX))) >=
           0;
  };
  // Who may not have it all gets what everybody may have; failing that, the default stays.
  if (!ask(bytes)) ask(std::min(bytes, kernel_limit("/proc/sys/fs/pipe-max-size", bytes)));
}

}  // namespace farcall::channel
