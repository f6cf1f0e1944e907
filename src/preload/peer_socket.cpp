// SPDX-License-Identifier: Apache-2.0
#include "preload/peer_socket.hpp"

#include <fcntl.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstring>

#include "preload/directory.hpp"
#include "preload/kind.hpp"
#include "preload/proof.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

int number_of(const char* digits) noexcept {
  int number = 0;
  for (; *digits >= '0' && *digits <= '9'; ++digits) number = 10 * number + (*digits - '0');
  return number;
}

// What that process has of the socket; -ENOENT if it has none.
int borrow_from(pid_t pid, const FoundSocket& wanted) noexcept {
  const long process = kernel(SYS_pidfd_open, pid, 0);
  if (process < 0) return static_cast<int>(process);
  char link[32];
  const auto length =
      static_cast<long>(std::snprintf(link, sizeof link, "socket:[%u]", wanted.inode));
  char path[32];
  std::snprintf(path, sizeof path, "/proc/%d/fd", pid);
  long borrowed = -ENOENT;
  find_entry(path, [&](int directory, const char* name) {
    char target[32];
    if (kernel(SYS_readlinkat, directory, name, target, sizeof target) != length ||
        std::memcmp(target, link, static_cast<std::size_t>(length)) != 0)
      return false;
    borrowed = kernel(SYS_pidfd_getfd, process, number_of(name), 0);
    if (borrowed >= 0 && cookie_of(static_cast<int>(borrowed)) != wanted.cookie) {
      kernel(SYS_close, borrowed);
      borrowed = -ESTALE;
    }
    return true;
  });
  kernel(SYS_close, process);
  return static_cast<int>(borrowed);
}

}  // namespace

int borrow_peer_socket(int fd, const Side& side) noexcept {
  FoundSocket wanted{};
  if (const int result = find_peer(fd, side, wanted); result != 0) return result;
  const pid_t pid = side.peer_pid;
  int borrowed = pid > 0 ? borrow_from(pid, wanted) : -ENOENT;
  if (borrowed >= 0) return borrowed;
  // A child of that process may have it alone by now, or whoever it was passed to.
  find_entry("/proc", [&](int, const char* name) {
    const pid_t other = number_of(name);
    if (other > 0 && other != pid) borrowed = borrow_from(other, wanted);
    return borrowed >= 0;
  });
  return borrowed;
}

}  // namespace farcall::preload
