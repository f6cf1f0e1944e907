// SPDX-License-Identifier: Apache-2.0
#include "door/kernel_device.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "door/real.hpp"
#include "process/per_process.hpp"

namespace farcall::door::kernel {
namespace {

class Device {
 public:
  int get() noexcept {
    // acquire: pairs with the release below, so that the descriptor is open.
    if (const int fd = number_.load(std::memory_order_acquire); fd >= 0) [[likely]]
      return fd;
    if (const int error = absent_.load(std::memory_order_relaxed); error != 0) {
      errno = error;
      return -1;
    }
    const std::lock_guard guard(lock_);
    if (!fd_) open();
    return fd_ ? fd_.get() : -1;
  }

  // Somebody has closed it behind our back: programs close whatever they find. The number may be
  // another's by now.
  void lost(int fd) noexcept {
    const std::lock_guard guard(lock_);
    if (fd_.get() != fd) return;
    number_.store(-1, std::memory_order_release);
    (void)fd_.release().release();
  }

 private:
  void open() noexcept {
    fd_ = process::PrivateFd(UniqueFd(real::openat(AT_FDCWD, "/dev/door", O_RDWR | O_CLOEXEC, 0)));
    if (fd_)
      number_.store(fd_.get(), std::memory_order_release);
    else if (errno == ENOENT || errno == EACCES || errno == EPERM || errno == ENXIO ||
             errno == ENODEV)
      absent_.store(errno, std::memory_order_relaxed);  // programs open files all the time
  }

  std::atomic<int> number_{-1};
  std::atomic<int> absent_{0};  // errno of a process that is not to have it
  std::mutex lock_;             // protects the rest
  process::PrivateFd fd_;
};

}  // namespace

int on_device(unsigned long command, void* argument) noexcept {
  Device& device = process::PerProcess<Device>::here();
  for (bool again = true;; again = false) {
    const int fd = device.get();
    if (fd < 0) return -1;
    const int result = ::ioctl(fd, command, argument);
    if (result >= 0 || !again || (errno != EBADF && errno != ENOTTY)) return result;
    if (errno == EBADF && ::fcntl(fd, F_GETFD) >= 0) return -1;  // it is the argument that is bad
    device.lost(fd);
  }
}

bool has_device() noexcept {
  const int saved = errno;
  const bool has = process::PerProcess<Device>::here().get() >= 0;
  errno = saved;
  return has;
}

}  // namespace farcall::door::kernel
