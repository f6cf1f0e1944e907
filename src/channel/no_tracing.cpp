// SPDX-License-Identifier: Apache-2.0
#include "channel/no_tracing.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace farcall::channel {
namespace {

// Of this thread, and written by the kernel where it knows another version.
__user_cap_header_struct header() noexcept {
  return {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
}

}  // namespace

NoTracing::NoTracing() noexcept {
  __user_cap_header_struct head = header();
  if (::syscall(SYS_capget, &head, held_) != 0) {
    fits_ = false;
    return;
  }
  constexpr unsigned kWord = CAP_TO_INDEX(CAP_SYS_PTRACE);
  constexpr unsigned kBit = CAP_TO_MASK(CAP_SYS_PTRACE);
  if ((held_[kWord].effective & kBit) == 0) return;
  __user_cap_data_struct without[2];
  std::ranges::copy(held_, without);
  without[kWord].effective &= ~kBit;
  head = header();
  changed_ = fits_ = ::syscall(SYS_capset, &head, without) == 0;
}

NoTracing::~NoTracing() {
  if (!changed_) return;
  const int saved = errno;
  // It is permitted still, so that this cannot fail; without it the thread would do with less.
  __user_cap_header_struct head = header();
  ::syscall(SYS_capset, &head, held_);
  errno = saved;
}

}  // namespace farcall::channel
