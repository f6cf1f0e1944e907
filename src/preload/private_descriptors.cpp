// SPDX-License-Identifier: Apache-2.0
//
// Descriptors of the library itself, among those of the program.
#include <fcntl.h>
#include <sys/resource.h>

#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

namespace detail {
constinit std::array<std::atomic<std::uint64_t>, kMostDescriptors / 64> private_descriptors{};
}  // namespace detail

namespace {

constinit std::atomic<int> highest_private{0};
constinit std::atomic<std::uint64_t> descriptor_limit{0};  // when it was last asked for

long copy_high(int fd) noexcept {
  const auto first = [](std::uint64_t limit) noexcept {
    return limit < 1024 ? static_cast<int>(limit - limit / 8) : 900;
  };
  const std::uint64_t known = descriptor_limit.load(std::memory_order_relaxed);
  const long high =
      kernel(SYS_fcntl, fd, F_DUPFD_CLOEXEC, first(known != 0 ? known : ask_descriptor_limit()));
  if (high >= 0) return high;
  // The limit may be another one by now.
  return kernel(SYS_fcntl, fd, F_DUPFD_CLOEXEC, first(ask_descriptor_limit()));
}

void note_private(int fd) noexcept {
  detail::private_descriptors[static_cast<std::size_t>(fd) / 64].fetch_or(
      std::uint64_t{1} << fd % 64, std::memory_order_relaxed);
  note_highest(highest_private, fd);
}

}  // namespace

std::uint64_t ask_descriptor_limit() noexcept {
  rlimit found{};
  if (kernel(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &found) != 0) found.rlim_cur = 1024;
  descriptor_limit.store(found.rlim_cur, std::memory_order_relaxed);
  return found.rlim_cur;
}

int make_private(int fd) noexcept {
  if (fd < 0) return fd;
  if (const long high = copy_high(fd); high >= 0) {
    kernel(SYS_close, fd);
    fd = static_cast<int>(high);
  }
  if (fd < kMostDescriptors) note_private(fd);
  return fd;
}

int copy_to_private(int fd) noexcept {
  const auto copy = static_cast<int>(copy_high(fd));
  if (copy < 0) return -1;
  if (copy < kMostDescriptors) {
    note_private(copy);
    return copy;
  }
  kernel(SYS_close, copy);
  return -1;
}

bool is_private(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostDescriptors) &&
         (detail::private_descriptors[static_cast<std::size_t>(fd) / 64].load(
              std::memory_order_relaxed) >>
              (fd % 64) &
          1) != 0;
}

int highest_private_descriptor() noexcept {
  return highest_private.load(std::memory_order_relaxed);
}

void forget_private(int fd) noexcept {
  if (is_private(fd))
    detail::private_descriptors[static_cast<std::size_t>(fd) / 64].fetch_and(
        ~(std::uint64_t{1} << fd % 64), std::memory_order_relaxed);
}

void close_private(int fd) noexcept {
  if (!is_private(fd)) return;  // somebody has closed it, the number may be another's by now
  forget_private(fd);
  kernel(SYS_close, fd);
}

}  // namespace farcall::preload
