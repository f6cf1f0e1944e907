// SPDX-License-Identifier: Apache-2.0
#include "channel/kernel_limit.hpp"

#include <fstream>

namespace farcall::channel {

std::size_t kernel_limit(const char* path, std::size_t otherwise) {
  std::size_t value = 0;
  return std::ifstream(path) >> value ? value : otherwise;
}

}  // namespace farcall::channel
