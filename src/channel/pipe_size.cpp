// SPDX-License-Identifier: Apache-2.0
#include "channel/pipe_size.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "channel/descriptor.hpp"
#include "channel/kernel_limit.hpp"
#include "farcall/error.hpp"

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

Handles create_pipe(const Options& options) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  set_pipe_size(writer.get(), options.buffer_bytes);
  return {.reader = handle_of(std::move(reader)), .writer = handle_of(std::move(writer))};
}

}  // namespace farcall::channel
