// SPDX-License-Identifier: Apache-2.0
#include "process/identity.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <string_view>

namespace farcall::process {
namespace {

constexpr std::uint32_t kUsualOverflowId = 65534;

// By system calls: open() may be a function that asks here.
std::string_view read_small(const char* path, char* buffer, std::size_t size) noexcept {
  const int saved = errno;
  ssize_t count = -1;
  const auto fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC));
  if (fd >= 0) {
    count = ::syscall(SYS_read, fd, buffer, size);
    ::syscall(SYS_close, fd);
  }
  errno = saved;
  return {buffer, count > 0 ? static_cast<std::size_t>(count) : 0};
}

// Takes a number out of the front of a text, with the spaces before it.
bool take_number(std::string_view& text, std::uint32_t& number) noexcept {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

// Read once; as long as nobody has, a number that no user can have.
constexpr std::uint32_t kNotRead = UINT32_MAX;
constinit std::atomic<std::uint32_t> overflow_id{kNotRead};

std::uint32_t overflow_id_of_system() noexcept {
  std::uint32_t id = overflow_id.load(std::memory_order_relaxed);
  if (id != kNotRead) return id;
  char buffer[32];
  std::string_view text = read_small("/proc/sys/kernel/overflowuid", buffer, sizeof buffer);
  if (!take_number(text, id)) id = kUsualOverflowId;
  overflow_id.store(id, std::memory_order_relaxed);
  return id;
}

}  // namespace

bool is_overflow_id(uid_t id) noexcept {
  return id == kUsualOverflowId || id == overflow_id_of_system();
}

bool knows_all_users() noexcept {
  // Not remembered: a process may move to another user namespace.
  char buffer[128];
  std::string_view text = read_small("/proc/self/uid_map", buffer, sizeof buffer);
  std::uint32_t inside = 0;
  std::uint32_t outside = 0;
  std::uint32_t count = 0;
  return take_number(text, inside) && take_number(text, outside) && take_number(text, count) &&
         inside == 0 && outside == 0 && count == UINT32_MAX;
}

bool same_user(uid_t a, uid_t b) noexcept {
  return a == b && (!is_overflow_id(a) || knows_all_users());
}

bool is_only(uid_t user) noexcept {
  uid_t real = 0;
  uid_t effective = 0;
  uid_t saved = 0;
  return ::getresuid(&real, &effective, &saved) == 0 && real == user && saved == user &&
         same_user(user, effective);
}

}  // namespace farcall::process
