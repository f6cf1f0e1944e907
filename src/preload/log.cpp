// SPDX-License-Identifier: Apache-2.0
#include "preload/log.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// Descriptor 2 as it was found first.
struct Found {
  enum State : unsigned { kUnknown, kBeingFound, kUsable, kNone };
  std::atomic<unsigned> state{kUnknown};
  dev_t device = 0;
  ino_t inode = 0;
};
constinit Found found;

bool look_at_error_output(struct stat& status) noexcept {
  return kernel(SYS_newfstatat, STDERR_FILENO, "", &status, AT_EMPTY_PATH) == 0;
}

// A service may have a unix socket for what it says; a connection to a client is not for that.
bool is_for_people(const struct stat& status) noexcept {
  if (!S_ISSOCK(status.st_mode)) return true;
  int family = 0;
  socklen_t size = sizeof family;
  return kernel(SYS_getsockopt, STDERR_FILENO, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
         family == AF_UNIX;
}

void find_error_output() noexcept {
  unsigned state = Found::kUnknown;
  if (!found.state.compare_exchange_strong(state, Found::kBeingFound)) return;
  struct stat status {};
  const bool usable = look_at_error_output(status) && is_for_people(status);
  found.device = status.st_dev;
  found.inode = status.st_ino;
  // release: pairs with the acquire in write_to_user()
  found.state.store(usable ? Found::kUsable : Found::kNone, std::memory_order_release);
}

[[gnu::constructor]] void start() noexcept { find_error_output(); }

}  // namespace

void write_to_user(const char* line, std::size_t size) noexcept {
  find_error_output();
  struct stat now {};
  if (found.state.load(std::memory_order_acquire) == Found::kUsable && look_at_error_output(now) &&
      now.st_dev == found.device && now.st_ino == found.inode)
    kernel(SYS_write, STDERR_FILENO, line, size);
}

void log(LogLevel level, const char* format, ...) noexcept {
  if (level < settings().log_level) return;
  const int saved = errno;
  char line[400];
  constexpr std::size_t kRoom = sizeof line - 1;
  int size = std::snprintf(line, kRoom, "farcall[%ld]: ", kernel(SYS_getpid));
  va_list arguments;
  va_start(arguments, format);
  size += std::vsnprintf(line + size, kRoom - static_cast<std::size_t>(size), format, arguments);
  va_end(arguments);
  std::size_t length = std::min(static_cast<std::size_t>(size), kRoom - 1);
  line[length++] = '\n';
  write_to_user(line, length);
  errno = saved;
}

}  // namespace farcall::preload
