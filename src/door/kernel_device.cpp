// SPDX-License-Identifier: Apache-2.0
#include "door/kernel_device.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <new>

#include "door/door.hpp"
#include "door/real.hpp"
#include "farcall/wait.hpp"
#include "process/per_process.hpp"
#include "process/process.hpp"

namespace farcall::door::kernel {
namespace {

// For so long a process believes that there is none, or none for it: programs open files all the
// time.
constexpr std::int64_t kBelieved = 1'000'000'000;

UniqueFd open_device() noexcept {
  const process::NoCancel guard;
  return UniqueFd(real::openat(AT_FDCWD, "/dev/door", O_RDWR | O_CLOEXEC, 0));
}

class Device {
 public:
  // -1 and errno where there is none.
  int get() noexcept {
    // acquire: pairs with the release below, so that the descriptor is open.
    if (const int fd = number_.load(std::memory_order_acquire); fd >= 0) [[likely]]
      return fd;
    if (const int error = absent_.load(std::memory_order_relaxed);
        error != 0 && monotonic_ns() < believed_until_.load(std::memory_order_relaxed)) {
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
    fd_ = process::PrivateFd(open_device());
    if (fd_) return number_.store(fd_.get(), std::memory_order_release);
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR) return;
    believed_until_.store(monotonic_ns() + kBelieved, std::memory_order_relaxed);
    absent_.store(error, std::memory_order_relaxed);
    errno = error;
  }

  std::atomic<int> number_{-1};
  std::atomic<int> absent_{0};  // errno of a process that is not to have it, and until when:
  std::atomic<std::int64_t> believed_until_{0};
  std::mutex lock_;  // protects the rest
  process::PrivateFd fd_;
};

// Null, and ENOMEM, where there is no memory for it.
Device* device() noexcept {
  try {
    return &process::PerProcess<Device>::here();
  } catch (const std::bad_alloc&) {
    errno = ENOMEM;
    return nullptr;
  }
}

int do_once(unsigned long command, void* argument) noexcept {
  const process::NoCancel guard;
  const UniqueFd fd = open_device();
  return fd ? ::ioctl(fd.get(), command, argument) : -1;
}

}  // namespace

int on_device(unsigned long command, void* argument) noexcept {
  Device* const here = device();
  if (here == nullptr) return -1;
  if (!descriptors_are_ours()) return do_once(command, argument);
  for (bool again = true;; again = false) {
    const int fd = here->get();
    if (fd < 0) return -1;
    const int result = ::ioctl(fd, command, argument);
    if (result >= 0 || !again || (errno != EBADF && errno != ENOTTY)) return result;
    if (errno == EBADF && ::fcntl(fd, F_GETFD) >= 0) return -1;  // it is the argument that is bad
    here->lost(fd);
  }
}

bool has_device() noexcept {
  const process::NoCancel guard;
  const int saved = errno;
  Device* const here = device();
  const bool has = here != nullptr &&
                   (descriptors_are_ours() ? here->get() >= 0 : static_cast<bool>(open_device()));
  errno = saved;
  return has;
}

}  // namespace farcall::door::kernel
