// SPDX-License-Identifier: Apache-2.0
//
// Which sockets a set looks at itself: the hot ones, as epoll.hpp has it.
#pragma once

#include <sys/epoll.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstdint>

#include "preload/epoll/set.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

inline constexpr std::uint32_t kMostHot = 256;
inline constexpr std::uint32_t kInput = EPOLLIN | EPOLLRDNORM;

inline bool is_news(const Registration& entry, std::uint64_t position) noexcept {
  return position != kNothingToRead && (entry.event.events & kInput) != 0 &&
         ((entry.event.events & EPOLLET) == 0 || entry.reported != position);
}

// There is nothing, or another thread has a datagram socket's lock for a moment: who would sleep on
// that looks again.
inline bool may_be_news(const Registration& entry, int fd, std::uint64_t position) noexcept {
  if (position != kNothingToRead || (entry.event.events & kInput) == 0)
    return is_news(entry, position);
  UdpSocket* const udp = find_udp(fd);
  return udp != nullptr && udp_may_be_ready(*udp);
}

// Whether the set is still the one that `fd` refers to; under its lock.
inline bool is_still(const Set& set, int fd) noexcept { return find_set(fd) == &set; }

// An exclusive registration cannot be changed, only made anew.
inline void change_registration(int set, int fd, epoll_event event) noexcept {
  if (kernel(SYS_epoll_ctl, set, EPOLL_CTL_MOD, fd, &event) != -EINVAL) return;
  kernel(SYS_epoll_ctl, set, EPOLL_CTL_DEL, fd, nullptr);
  kernel(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event);
}

// What is told of once has been told of, but not by the kernel. That reports EPOLLERR and EPOLLHUP
// of whatever is changed, which it does not of what it has told of itself: the event that comes of
// it, one at most, is known by its data, and is nobody's.
inline constexpr std::uint64_t kDisarmed = 0x9d5c'fa7c'a11d'15a3;
inline void disarm(Set& set, int set_fd, int fd) noexcept {
  change_registration(set_fd, fd, {.events = EPOLLONESHOT, .data = {.u64 = kDisarmed}});
  set.by_fd[fd].event.events = EPOLLONESHOT;
  count_wait_for_room(set, fd);
}

// Whoever waits must be told by the kernel, and nobody but this process would see how.
inline bool needs_kicks(const Set& set) noexcept {
  return set.waiters.load(std::memory_order_relaxed) == Waiters::kernel && !known_elsewhere(set);
}
// Bytes lie in memory of a socket in a set in which somebody sleeps, or waits in ways that only the
// kernel serves, as in a set that the set is in. The kernel wakes it by what is nearly always so.
// The set's lock is held.
void kick(Set& set, int set_fd, int fd) noexcept;
// What kick() has brought about is no news of the program's: puts right the `count` events that
// have been reported, and returns how many of them are left; and the registration, unless bytes are
// still in memory that only the kernel can tell of. Of those who sleep, `own` are the caller.
int undo_kicks(Set& set, int set_fd, epoll_event* events, int count, std::uint32_t own) noexcept;

// Has hot ones watched that have been taken out; those with news are put back. True if any has.
// `set_fd` refers to the set, or is -1: nobody is woken. `tells_next`: this thread looks at them
// before it does anything else, so those who sleep need not be woken.
bool watch_taken(Set& set, int set_fd, const int* taken, std::uint32_t count,
                 bool tells_next) noexcept;
// Of all hot ones; likewise.
bool watch_all(Set& set, int set_fd, bool tells_next) noexcept;
// From now on only the kernel tells of what is in it.
void leave_set_to_kernel(Set& set, int set_fd) noexcept;

}  // namespace farcall::preload
