// SPDX-License-Identifier: Apache-2.0
#include "door/pages.hpp"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace farcall::door {
namespace {

constexpr unsigned kPageShift = GoodPages::kPageShift;
constexpr std::uintptr_t kFewPages = 16;

void* address_of(std::uintptr_t page) noexcept {
  return reinterpret_cast<void*>(page << kPageShift);
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
  auto* start = reinterpret_cast<char*>(page << kPageShift & ~(size - 1));
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

bool page_good(std::uintptr_t page, bool to_write) noexcept {
  if (to_write ? good_pages.writable(page) : good_pages.readable(page)) return true;
  if (page == 0) return false;
  const int saved = errno;
  const bool good = to_write ? probe_writable(page) : probe_readable(page);
  errno = saved;
  if (good) good_pages.add(page, to_write);
  return good;
}

// Of many pages with one system call, which takes as long as copying them twice: that all can be
// read. To write: that there is memory behind each, which takes next to nothing.
bool all_good(std::uintptr_t first, std::uintptr_t last, bool to_write) noexcept {
  const auto page_size = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t start = first << kPageShift & ~(page_size - 1);
  const std::uintptr_t size = ((last + 1) << kPageShift) - start;
  auto* const address = reinterpret_cast<void*>(start);
  if (to_write || !kSupported) return ::msync(address, size, MS_ASYNC) == 0;
#if !defined(MADV_POPULATE_READ)
  constexpr int MADV_POPULATE_READ = 22;
#endif
  if (::madvise(address, size, MADV_POPULATE_READ) == 0) return true;
  if (errno == ENOMEM || errno == EFAULT) return false;
  // A page may be protected, or memory of a device.
  for (std::uintptr_t page = first; page <= last; ++page)
    if (!probe_readable(page)) return false;
  return true;
}

// Many pages in a row that this thread has found to be good: to be read, or to be written to, for
// which not all were looked at. Whether there is still memory behind them is looked at each time.
class GoodRanges {
 public:
  [[nodiscard]] bool has(std::uintptr_t first, std::uintptr_t last, bool to_write) const noexcept {
    return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
      return range.first <= first && last <= range.last && range.to_write == to_write;
    });
  }
  void add(std::uintptr_t first, std::uintptr_t last, bool to_write) noexcept {
    ranges_[next_++ % ranges_.size()] = {first, last, to_write};
  }

 private:
  struct Range {
    std::uintptr_t first = 1;
    std::uintptr_t last = 0;
    bool to_write = false;
  };
  std::array<Range, 4> ranges_{};
  unsigned next_ = 0;
};
constinit thread_local GoodRanges good_ranges;

bool many_good(std::uintptr_t first, std::uintptr_t last, bool to_write) noexcept {
  if (good_ranges.has(first, last, to_write)) return all_good(first, last, true);
  for (std::uintptr_t page = first; to_write && page < first + kFewPages; ++page)
    if (!page_good(page, true)) return false;
  if (!all_good(first, last, to_write) || (to_write && !page_good(last, true))) return false;
  good_ranges.add(first, last, to_write);
  return true;
}

bool good(const void* address, std::size_t size, bool to_write) noexcept {
  if (size == 0) return true;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  if (first + size - 1 < first) return false;
  const std::uintptr_t last_page = (first + size - 1) >> kPageShift;
  const std::uintptr_t first_page = first >> kPageShift;
  if (first_page == 0) return false;
  if (last_page - first_page > kFewPages) {
    const int saved = errno;
    const bool there = many_good(first_page, last_page, to_write);
    errno = saved;
    return there;
  }
  for (std::uintptr_t page = first_page; page <= last_page; ++page)
    if (!page_good(page, to_write)) return false;
  return true;
}

}  // namespace

thread_local constinit GoodPages good_pages;

bool look_whether_readable(const void* address, std::size_t size) noexcept {
  return good(address, size, false);
}

bool look_whether_writable(void* address, std::size_t size) noexcept {
  return good(address, size, true);
}

}  // namespace farcall::door
