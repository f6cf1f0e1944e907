// SPDX-License-Identifier: Apache-2.0
//
// What lies behind the hooks: the kernel itself, and the C library's own functions.
//
// The kernel is called directly wherever the call does not block: that works before anything is
// initialised, in signal handlers and in children of vfork, and passes no hook; a call that is the
// program's own goes to another preloaded library where there is one behind this (see Direct). What
// blocks is called through the C library, where it is a point at which threads can be cancelled.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "interpose/next.hpp"
#include "observe/kernel_call.hpp"

namespace farcall::preload {

#if !defined(__x86_64__) && !defined(__aarch64__)
#error "the preload library knows how to call the kernel on x86-64 and arm64 only"
#endif
using observe::kernel;

// The size of a signal mask in system calls.
inline constexpr std::size_t kKernelMaskSize = 8;

// The result of a system call as the C library gives it.
inline long with_errno(long result) noexcept {
  if (result >= 0 || result < -4095) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// Waits for POLLIN or POLLOUT where ppoll() refuses to, since the process may open no descriptor
// any more (RLIMIT_NOFILE). As ppoll(); negative errno.
long select_one(int fd, short event, const timespec* longest) noexcept;

// What the kernel says of the descriptor at this moment: as in pollfd::revents.
inline short poll_now(int fd, short events) noexcept {
  pollfd look{.fd = fd, .events = events, .revents = 0};
  timespec now{};
  return kernel(SYS_ppoll, &look, 1, &now, nullptr, 0) > 0 ? look.revents : short{0};
}

namespace real {

using interpose::next;
using interpose::Symbol;

// What stands behind ours under that name, unless it is the C library's own: another library that
// was loaded in front of it, too, and wants to be asked. Null if there is none.
void* find_other(const char* name) noexcept;

// A call that the program makes and that does not block: the other library's where there is one,
// else the kernel's. Which, is decided when this library is loaded; before, it is the kernel's.
template <Symbol kSymbol, class Function, class... Parameters>
class Direct {
 public:
  explicit constexpr Direct(long number) noexcept : number_(number) {}
  void look_up() noexcept {
    other_.store(reinterpret_cast<Function*>(find_other(kSymbol.name)), std::memory_order_relaxed);
  }
  // The result, or the negative errno.
  long operator()(Parameters... parameters) const noexcept {
    Function* const other = other_.load(std::memory_order_relaxed);
    if (other == nullptr) [[likely]]
      return kernel(number_, parameters...);
    const int result = other(parameters...);
    return result >= 0 ? result : -errno;
  }

 private:
  long number_;
  std::atomic<Function*> other_{nullptr};
};

}  // namespace real
}  // namespace farcall::preload
