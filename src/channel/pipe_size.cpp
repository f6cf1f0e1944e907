// SPDX-License-Identifier: Apache-2.0
#include "channel/pipe_size.hpp"

#include <fcntl.h>

#include <algorithm>
#include <fstream>

namespace farcall::channel {
namespace {

std::size_t largest_pipe() {
  std::size_t largest = 0;
  std::ifstream("/proc/sys/fs/pipe-max-size") >> largest;
  return largest;
}

}  // namespace

void set_pipe_size(int pipe, std::size_t bytes) {
  if (bytes == 0) return;
  constexpr std::size_t kKernelLimit = std::size_t{1} << 31;
  const auto ask = [pipe](std::size_t wanted) {
    return ::fcntl(pipe, F_SETPIPE_SZ, static_cast<int>(std::min(wanted, kKernelLimit - 1))) >= 0;
  };
  // Who may not have it all gets what everybody may have; failing that, the default stays.
  if (!ask(bytes)) ask(std::min(bytes, largest_pipe()));
}

}  // namespace farcall::channel
