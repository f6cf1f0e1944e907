// SPDX-License-Identifier: Apache-2.0
//
// In the place of src/preload/real.hpp, whose calls of the kernel are instructions: here they are
// the model's.
#pragma once

namespace farcall::preload {

template <class... Arguments>
long kernel(long number, Arguments... arguments) noexcept {
  const long result = syscall(number, arguments...);
  return result < 0 ? -errno : result;
}

inline short poll_now(int fd, short events) noexcept {
  pollfd look{.fd = fd, .events = events, .revents = 0};
  return poll(&look, 1, 0) > 0 ? look.revents : short{0};
}

}  // namespace farcall::preload
