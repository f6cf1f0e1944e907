// SPDX-License-Identifier: Apache-2.0
#include "channel/sigpipe.hpp"

#include <signal.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace farcall::channel {
namespace {

constexpr int kNoSignal = 0x100;  // RWF_NOSIGNAL, which the C library does not know yet

// Cleared once the kernel has refused the flag. Relaxed: a stale value costs one failed call.
std::atomic<bool> kernel_knows_flag{true};

sigset_t only_sigpipe() noexcept {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGPIPE);
  return set;
}

bool is_pending() noexcept {
  sigset_t pending;
  return ::sigpending(&pending) == 0 && ::sigismember(&pending, SIGPIPE) == 1;
}

}  // namespace

PipeSignal::PipeSignal() noexcept {
  struct sigaction action {};
  ignored_ = ::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

ssize_t PipeSignal::write(int fd, std::span<const std::byte> bytes) const noexcept {
  if (kernel_knows_flag.load(std::memory_order_relaxed)) {
    const iovec piece{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    const ssize_t count = ::pwritev2(fd, &piece, 1, -1, kNoSignal);
    if (count >= 0 || (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS)) return count;
    kernel_knows_flag.store(false, std::memory_order_relaxed);
  }
  return suppress([&] { return ::write(fd, bytes.data(), bytes.size()); });
}

PipeSignal::Blocked::Blocked() noexcept : pending_before_(is_pending()) {
  const sigset_t sigpipe = only_sigpipe();
  sigset_t before;
  ::pthread_sigmask(SIG_BLOCK, &sigpipe, &before);
  blocked_before_ = ::sigismember(&before, SIGPIPE) == 1;
}

PipeSignal::Blocked::~Blocked() {
  const int error = errno;
  const sigset_t sigpipe = only_sigpipe();
  if (!pending_before_ && is_pending()) {
    const timespec now{};
    ::sigtimedwait(&sigpipe, nullptr, &now);
  }
  if (!blocked_before_) ::pthread_sigmask(SIG_UNBLOCK, &sigpipe, nullptr);
  errno = error;
}

}  // namespace farcall::channel
