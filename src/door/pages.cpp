// SPDX-License-Identifier: Apache-2.0
#include "door/pages.hpp"

#include <signal.h>
#include <sys/mman.h>
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

// Pages that this thread has found to be good, each in its only place.
using Remembered = std::array<std::uintptr_t, kRemembered>;
thread_local constinit Remembered remembered_readable{};
thread_local constinit Remembered remembered_writable{};

void* address_of(std::uintptr_t page) noexcept {
  return reinterpret_cast<void*>(page << kPageShift);  // NOLINT(performance-no-int-to-ptr)
}

bool probe_readable(std::uintptr_t page) noexcept {
  // The kernel copies the new mask in before it finds that there is no such operation.
  constexpr int kNoSuchOperation = -1;
  constexpr std::size_t kMaskBytes = 8;
  const long result =
      ::syscall(SYS_rt_sigprocmask, kNoSuchOperation, address_of(page), nullptr, kMaskBytes);
  return result == 0 || errno != EFAULT;
}

// Has the page made ready to be written to, without writing.
bool populate(std::uintptr_t page) noexcept {
  const auto size = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  // Larger pages than those we count begin where the kernel wants them to.
  auto* start = reinterpret_cast<char*>(page << kPageShift & ~(size - 1));  // NOLINT
#if !defined(MADV_POPULATE_WRITE)
  constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14
#endif
  return ::madvise(start, size, MADV_POPULATE_WRITE) == 0;
}

// An older kernel says no to all pages alike, also to one that certainly is writable.
const bool kSupported = [] {
  volatile char here = 0;
  return populate(reinterpret_cast<std::uintptr_t>(&here) >> kPageShift);
}();

bool probe_writable(std::uintptr_t page) noexcept {
  return kSupported ? populate(page) : probe_readable(page);
}

template <bool (*Probe)(std::uintptr_t)>
bool page_good(std::uintptr_t page, Remembered& remembered) noexcept {
  std::uintptr_t& place = remembered[page % kRemembered];
  if (place == page && page != 0) [[likely]]
    return true;
  if (page == 0) return false;
  const int saved = errno;
  const bool good = Probe(page);
  errno = saved;
  if (good) place = page;
  return good;
}

template <bool (*Probe)(std::uintptr_t)>
bool good(const void* address, std::size_t size, Remembered& remembered) noexcept {
  if (size == 0) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (first + size - 1 < first) return false;
  const std::uintptr_t last_page = (first + size - 1) >> kPageShift;
  const std::uintptr_t first_page = first >> kPageShift;
  if (!page_good<Probe>(first_page, remembered)) return false;
  if (last_page - first_page > kFewPages) return page_good<Probe>(last_page, remembered);
  for (std::uintptr_t page = first_page + 1; page <= last_page; ++page)
    if (!page_good<Probe>(page, remembered)) return false;
  return true;
}

}  // namespace

[[gnu::hot]] bool readable(const void* address, std::size_t size) noexcept {
  return good<probe_readable>(address, size, remembered_readable);
}

[[gnu::hot]] bool writable(void* address, std::size_t size) noexcept {
  return good<probe_writable>(address, size, remembered_writable);
}

}  // namespace farcall::door
