// SPDX-License-Identifier: Apache-2.0
//
// Whether a caller's pointer can be used, so that a bad one gives EFAULT and not a signal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace farcall::door {

// Pages that this thread has found to be good, each in its only place: its number, and in the bit
// below whether it can be written to as well as read.
class GoodPages {
 public:
  static constexpr unsigned kPageShift = 12;  // the smallest there is

  [[nodiscard]] bool readable(std::uintptr_t page) const noexcept {
    return page != 0 && pages_[page % kPlaces] >> 1 == page;
  }
  [[nodiscard]] bool writable(std::uintptr_t page) const noexcept {
    return page != 0 && pages_[page % kPlaces] == (page << 1 | 1);
  }
  void add(std::uintptr_t page, bool writable) noexcept {
    pages_[page % kPlaces] = page << 1 | static_cast<std::uintptr_t>(writable);
  }

 private:
  static constexpr std::size_t kPlaces = 64;
  std::array<std::uintptr_t, kPlaces> pages_{};
};
extern thread_local constinit GoodPages good_pages;

bool look_whether_readable(const void* address, std::size_t size) noexcept;
bool look_whether_writable(void* address, std::size_t size) noexcept;

// Of something that lies in one page, its number; else 0.
inline std::uintptr_t only_page(const void* address, std::size_t size) noexcept {
  constexpr std::size_t kPage = std::size_t{1} << GoodPages::kPageShift;
  const auto first = reinterpret_cast<std::uintptr_t>(address);
  return size - 1 < kPage - first % kPage ? first >> GoodPages::kPageShift : 0;
}

// A page that was found good is not looked at again for a while; looking costs a system call. So it
// is with many in a row, but that it is looked at each time whether there is still memory.
inline bool readable(const void* address, std::size_t size) noexcept {
  return good_pages.readable(only_page(address, size)) || look_whether_readable(address, size);
}
// The same for memory that will be written to; of many pages only the first ones and the last are
// looked at, and of those between whether there is memory.
inline bool writable(void* address, std::size_t size) noexcept {
  return good_pages.writable(only_page(address, size)) || look_whether_writable(address, size);
}

}  // namespace farcall::door
