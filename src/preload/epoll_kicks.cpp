// SPDX-License-Identifier: Apache-2.0
//
// Sockets of a set with bytes in memory that only the kernel can tell of: it is made to.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "preload/address.hpp"
#include "preload/epoll_hot.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// An eventfd, for all sets.
constinit std::atomic<int> always_ready{-1};

int get_always_ready() noexcept {
  int known = always_ready.load(std::memory_order_relaxed);
  if (is_private(known)) return known;
  const long made = kernel(SYS_eventfd2, 1, EFD_CLOEXEC | EFD_NONBLOCK);
  if (made < 0) return -1;
  const int fresh = make_private(static_cast<int>(made));
  if (always_ready.compare_exchange_strong(known, fresh)) return fresh;
  close_private(fresh);
  return known;
}

// Puts into the set what is always ready, with the data of a socket that is not: the kernel wakes
// who waits there by that. The set's lock is held.
void add_waker(Set& set, int set_fd, const epoll_event& of) noexcept {
  const int fd = get_always_ready();
  epoll_event event{.events = EPOLLIN, .data = of.data};
  if (fd < 0 || kernel(SYS_epoll_ctl, set_fd, EPOLL_CTL_ADD, fd, &event) != 0) return;
  set.has_waker = true;
  set.waker_data = of.data.u64;
}

// Returns which of the events is of that: kNotTold where none is, kNoWaker where it was not there.
constexpr int kNoWaker = -2;
constexpr int kNotTold = -1;
int remove_waker(Set& set, int set_fd, const epoll_event* events, int count) noexcept {
  if (!std::exchange(set.has_waker, false)) return kNoWaker;
  const int fd = always_ready.load(std::memory_order_relaxed);
  if (is_private(fd)) kernel(SYS_epoll_ctl, set_fd, EPOLL_CTL_DEL, fd, nullptr);
  for (int i = 0; i < count; ++i)
    if (events[i].events == EPOLLIN && events[i].data.u64 == set.waker_data) return i;
  return kNotTold;
}

// What the other sockets want to be told of that are registered with the same data: events cannot
// be told apart by anything else.
std::uint32_t wanted_by_others(const Set& set, int fd) noexcept {
  const std::uint64_t data = set.by_fd[fd].event.data.u64;
  std::uint32_t wanted = 0;
  const auto capacity = static_cast<int>(set.capacity.load(std::memory_order_relaxed));
  for (int other = 0; other < capacity; ++other)
    if (const Registration& entry = set.by_fd[other];
        other != fd && entry.present && entry.event.data.u64 == data)
      wanted |= entry.event.events;
  return wanted;
}

}  // namespace

void kick(Set& set, int set_fd, int fd) noexcept {
  Registration& entry = set.by_fd[fd];
  if (std::exchange(entry.kicked, true)) return;
  set.kicked_count.fetch_add(1, std::memory_order_relaxed);
  epoll_event event = entry.event;
  event.events |= EPOLLOUT;
  change_registration(set_fd, fd, event);
  if ((poll_now(fd, POLLOUT) & POLLOUT) == 0) add_waker(set, set_fd, event);
}

int undo_kicks(Set& set, int set_fd, epoll_event* events, int count) noexcept {
  const Guard guard(set.lock);
  if (!guard || !is_still(set, set_fd)) return count;
  const bool only_kernel = set.waiters.load(std::memory_order_relaxed) == Waiters::kernel;
  const int waker = remove_waker(set, set_fd, events, count);
  bool of_somebody = false;  // the waker's event
  std::uint32_t kicked = 0;
  for (std::uint32_t index = 0; index < set.capacity.load(std::memory_order_relaxed); ++index) {
    Registration& entry = set.by_fd[index];
    if (!std::exchange(entry.kicked, false) || !entry.present) continue;
    const auto fd = static_cast<int>(index);
    const epoll_event right = entry.event;
    const bool readable = (right.events & kInput) != 0 && read_position(fd) != kNothingToRead;
    bool disarmed = false;
    for (int i = 0; i < count; ++i)
      if (events[i].data.u64 == right.data.u64) {
        if (i == waker) {
          of_somebody = readable;
          if (!readable) continue;
        }
        events[i].events &= right.events | wanted_by_others(set, fd) | EPOLLERR | EPOLLHUP;
        if (readable) events[i].events |= right.events & kInput;
        disarmed = (right.events & EPOLLONESHOT) != 0;
      }
    if (disarmed) {
      entry.event.events = EPOLLONESHOT;
      if (waker != kNoWaker) change_registration(set_fd, fd, entry.event);
      count_wait_for_room(set, fd);
    } else if (only_kernel && readable) {
      entry.kicked = true;
      ++kicked;
      if (waker != kNoWaker && (right.events & EPOLLET) == 0) add_waker(set, set_fd, right);
    } else {
      change_registration(set_fd, fd, right);
    }
  }
  if (waker >= 0 && !of_somebody) events[waker].events = 0;
  set.kicked_count.store(kicked, std::memory_order_relaxed);
  return static_cast<int>(std::remove_if(events, events + count,
                                         [](const epoll_event& one) { return one.events == 0; }) -
                          events);
}

}  // namespace farcall::preload
