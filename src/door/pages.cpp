// SPDX-License-Identifier: Apache-2.0
#include "door/pages.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace farcall::door {
namespace {

constexpr unsigned kPageShift = 12;  // the smallest there is
constexpr std::size_t kRemembered = 64;
constexpr std::uintptr_t kFewPages = 16;

// Pages that this thread has found readable, each in its only place.
thread_local std::array<std::uintptr_t, kRemembered> remembered{};

bool probe(std::uintptr_t page) noexcept {
  // The kernel copies the new mask in before it finds that there is no such operation.
  const auto* mask = reinterpret_cast<const void*>(page << kPageShift);  // NOLINT
  constexpr int kNoSuchOperation = -1;
  constexpr std::size_t kMaskBytes = 8;
  const int saved = errno;
  const long result = ::syscall(SYS_rt_sigprocmask, kNoSuchOperation, mask, nullptr, kMaskBytes);
  const bool good = result == 0 || errno != EFAULT;
  errno = saved;
  return good;
}

bool page_readable(std::uintptr_t page) noexcept {
  std::uintptr_t& place = remembered[page % kRemembered];
  if (place == page && page != 0) [[likely]]
    return true;
  if (page == 0 || !probe(page)) return false;
  place = page;
  return true;
}

}  // namespace

bool readable(const void* address, std::size_t size) noexcept {
  if (size == 0) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (first + size - 1 < first) return false;
  const std::uintptr_t last_page = (first + size - 1) >> kPageShift;
  const std::uintptr_t first_page = first >> kPageShift;
  if (!page_readable(first_page)) return false;
  if (last_page - first_page > kFewPages) return page_readable(last_page);
  for (std::uintptr_t page = first_page + 1; page <= last_page; ++page)
    if (!page_readable(page)) return false;
  return true;
}

}  // namespace farcall::door
