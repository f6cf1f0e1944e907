// SPDX-License-Identifier: Apache-2.0
#include "door/kernel_device.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "door/door.hpp"
#include "door/real.hpp"
#include "farcall/wait.hpp"
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

// A number that no child has of its parent: it goes with the generation in which it was set.
class OwnNumber {
 public:
  // -1: there is none.
  [[nodiscard]] int get() const noexcept {
    // acquire: pairs with the exchange below, so that the descriptor is open.
    const std::uint64_t word = word_.load(std::memory_order_acquire);
    return word >> 32 == generation() ? static_cast<int>(word & UINT32_MAX) : -1;
  }
  void set(int number) noexcept { word_.store(packed(number), std::memory_order_relaxed); }
  // False: there is one already.
  bool set_first(int number) noexcept {
    std::uint64_t seen = word_.load(std::memory_order_relaxed);
    return seen >> 32 != generation() &&
           word_.compare_exchange_strong(seen, packed(number), std::memory_order_acq_rel);
  }
  // False: it is another one by now.
  bool forget(int number) noexcept {
    std::uint64_t expected = packed(number);
    return word_.compare_exchange_strong(expected, 0, std::memory_order_acq_rel);
  }

 private:
  static std::uint64_t generation() noexcept { return process::generation() & UINT32_MAX; }
  static std::uint64_t packed(int number) noexcept {
    return generation() << 32 | static_cast<std::uint32_t>(number);
  }

  std::atomic<std::uint64_t> word_{0};
};

// Without memory or locks of its own: handlers open files, and children of _Fork(3) do.
class Device {
 public:
  // Whether there is one. False: errno says why. Asks nothing of which descriptors are whose: a
  // program that opens a file makes no more system calls than it takes.
  bool is_there() noexcept {
    if (number_.get() >= 0) [[likely]]
      return true;
    if (const int error = absent_.get();
        error > 0 && monotonic_ns() < believed_until_.load(std::memory_order_relaxed)) {
      errno = error;
      return false;
    }
    return static_cast<bool>(open());
  }

  // -1 and errno where there is none.
  int get() noexcept {
    if (const int fd = number_.get(); fd >= 0) [[likely]]
      return fd;
    process::PrivateFd made{open()};
    if (!made) return -1;
    // Otherwise another thread was first.
    if (number_.set_first(made.get())) return made.keep();
    return number_.get();
  }

  // Somebody has closed it behind our back: programs close whatever they find. The number may be
  // another's by now.
  void lost(int fd) noexcept {
    if (number_.forget(fd)) process::give_up_number(fd);
  }

 private:
  UniqueFd open() noexcept {
    UniqueFd fd = open_device();
    if (fd) return fd;
    const int error = errno;
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == EINTR) return fd;
    believed_until_.store(monotonic_ns() + kBelieved, std::memory_order_relaxed);
    absent_.set(error);
    errno = error;
    return fd;
  }

  OwnNumber number_;
  OwnNumber absent_;  // errno of a process that is not to have it, and until when:
  std::atomic<std::int64_t> believed_until_{0};
};

constinit Device device;

int do_once(unsigned long command, void* argument) noexcept {
  const process::NoCancel guard;
  const UniqueFd fd = open_device();
  return fd ? ::ioctl(fd.get(), command, argument) : -1;
}

}  // namespace

int on_device(unsigned long command, void* argument) noexcept {
  if (!device.is_there()) return -1;
  if (!descriptors_are_ours()) return do_once(command, argument);
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
  const process::NoCancel guard;
  const int saved = errno;
  const bool has = device.is_there();
  errno = saved;
  return has;
}

}  // namespace farcall::door::kernel
