// SPDX-License-Identifier: Apache-2.0
#include "preload/log.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdio>

#include "preload/real.hpp"

namespace farcall::preload {

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
  kernel(SYS_write, STDERR_FILENO, static_cast<const char*>(line), length);
  errno = saved;
}

}  // namespace farcall::preload
