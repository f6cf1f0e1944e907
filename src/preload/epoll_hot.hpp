// SPDX-License-Identifier: Apache-2.0
//
// Which sockets a set looks at itself: the hot ones, as epoll.hpp has it.
#pragma once

#include <sys/epoll.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>

#include "preload/epoll_set.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

inline constexpr std::uint32_t kMostHot = 256;
inline constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;

inline bool is_news(const Registration& entry, std::uint64_t position) noexcept {
  return position != kNothingToRead && (entry.event.events & kInput) != 0 &&
         ((entry.event.events & EPOLLET) == 0 || entry.reported != position);
}

// Whether the set is still the one that `fd` refers to; under its lock.
inline bool is_still(const Set& set, int fd) noexcept { return find_set(fd) == &set; }

// An exclusive registration cannot be changed, only made anew.
inline void change_registration(int set, int fd, epoll_event event) noexcept {
  if (kernel(SYS_epoll_ctl, set, EPOLL_CTL_MOD, fd, &event) != -EINVAL) return;
  kernel(SYS_epoll_ctl, set, EPOLL_CTL_DEL, fd, nullptr);
  kernel(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event);
}

// Puts into the set what is always ready, with the data of a socket that is not: the kernel wakes
// who waits there by that. The set's lock is held.
void add_waker(Set& set, int set_fd, epoll_data_t data) noexcept;
// Returns which of the events is of that: kNotTold where none is, kNoWaker where it was not there.
int remove_waker(Set& set, int set_fd, const epoll_event* events, int count) noexcept;
inline constexpr int kNoWaker = -2;
inline constexpr int kNotTold = -1;

// Has hot ones watched that have been taken out; those with news are put back. True if any has.
// `set_fd` refers to the set.
bool watch_taken(Set& set, int set_fd, const int* taken, std::uint32_t count) noexcept;
// Of all hot ones; likewise.
bool watch_all(Set& set, int set_fd) noexcept;
// From now on only the kernel tells of what is in it.
void leave_set_to_kernel(Set& set, int set_fd) noexcept;

}  // namespace farcall::preload
