// SPDX-License-Identifier: Apache-2.0
//
// Signal handlers may send, receive and close, on the very connection whose call they interrupt,
// and may jump out of it. So none runs while its thread holds a lock of the library: it waits for
// the few instructions until the lock is free. To block signals instead would cost two system calls
// for each lock.
#pragma once

#include <cstdint>

namespace farcall::preload {

namespace detail {
struct Section {
  std::uint32_t depth;  // locks that this thread holds, or is about to
  bool waiting;         // a signal came meanwhile
};
extern thread_local constinit Section section;
void deliver() noexcept;
}  // namespace detail

inline void enter_section() noexcept {
  detail::section.depth = detail::section.depth + 1;
  asm volatile("" ::: "memory");  // before what follows, as a handler of this thread sees it
}
inline void leave_section() noexcept {
  asm volatile("" ::: "memory");
  detail::section.depth = detail::section.depth - 1;
  asm volatile("" ::: "memory");
  if (detail::section.waiting && detail::section.depth == 0) [[unlikely]]
    detail::deliver();
}

}  // namespace farcall::preload
