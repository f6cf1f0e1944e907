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

// Puts into the set what is always ready, with the data of a socket that is not, or need not stay
// so: the kernel wakes who waits there by that, as often as the socket's own event is told of. The
// set's lock is held.
void add_waker(Set& set, int set_fd, const epoll_event& of) noexcept {
  const int fd = get_always_ready();
  if (fd < 0) return;
  epoll_event event{.events = EPOLLIN | (of.events & (EPOLLET | EPOLLONESHOT)), .data = of.data};
  long result = kernel(SYS_epoll_ctl, set_fd, EPOLL_CTL_ADD, fd, &event);
  if (result == -EEXIST) result = kernel(SYS_epoll_ctl, set_fd, EPOLL_CTL_MOD, fd, &event);
  if (result != 0) return;
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

// The events of a call of the kernel, and which of them is the waker's.
struct Told {
  epoll_event* events;
  int count;
  int waker;
  bool waker_is_right = false;  // it is news of a socket
};

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
  // What is told of once is not told of by two events.
  const bool once = (entry.event.events & EPOLLONESHOT) != 0;
  // Asked once: it may get room at any moment.
  const bool has_room = (poll_now(fd, POLLOUT) & POLLOUT) != 0;
  epoll_event event = entry.event;
  event.events |= EPOLLOUT;
  if (!once || has_room) change_registration(set_fd, fd, event);
  // Where only the kernel tells, the program may fill the socket before it waits.
  if ((needs_kicks(set) && !once) || !has_room) add_waker(set, set_fd, entry.event);
}

namespace {

// What has been told of a kicked socket, `readable` or not. True if the program hears of it.
bool put_right(const Set& set, int fd, Told& told, bool readable) noexcept {
  const epoll_event& right = set.by_fd[fd].event;
  bool any = false;
  for (int i = 0; i < told.count; ++i) {
    epoll_event& event = told.events[i];
    if (event.data.u64 != right.data.u64) continue;
    if (i == told.waker) {
      told.waker_is_right = told.waker_is_right || readable;
      if (!readable) continue;
    }
    event.events &= right.events | wanted_by_others(set, fd) | EPOLLERR | EPOLLHUP;
    if (readable) event.events |= right.events & kInput;
    any = any || event.events != 0;
  }
  return any;
}

// No socket is told of twice in a call.
void merge_waker(const Told& told) noexcept {
  if (told.waker < 0) return;
  epoll_event& waker = told.events[told.waker];
  if (!told.waker_is_right) waker.events = 0;
  for (int i = 0; i < told.count; ++i) {
    epoll_event& event = told.events[i];
    if (i == told.waker || event.events == 0 || event.data.u64 != waker.data.u64) continue;
    event.events |= waker.events;
    waker.events = 0;
    return;
  }
}

}  // namespace

int undo_kicks(Set& set, int set_fd, epoll_event* events, int count) noexcept {
  const Guard guard(set.lock);
  if (!guard || !is_still(set, set_fd)) return count;
  const bool only_kernel = set.waiters.load(std::memory_order_relaxed) == Waiters::kernel;
  Told told{.events = events, .count = count, .waker = remove_waker(set, set_fd, events, count)};
  set.kicked_count.store(0, std::memory_order_relaxed);
  for (std::uint32_t index = 0; index < set.capacity.load(std::memory_order_relaxed); ++index) {
    Registration& entry = set.by_fd[index];
    if (!std::exchange(entry.kicked, false) || !entry.present) continue;
    const auto fd = static_cast<int>(index);
    const std::uint64_t position = read_position(fd);
    const bool readable = is_news(entry, position);
    const bool is_told = put_right(set, fd, told, readable);
    if (is_told && readable) entry.reported = position;
    if (is_told && (entry.event.events & EPOLLONESHOT) != 0) {
      entry.event.events = EPOLLONESHOT;
      if (told.waker != kNoWaker) change_registration(set_fd, fd, entry.event);
      count_wait_for_room(set, fd);
    } else if ((only_kernel || !readable) && may_be_news(entry, fd, position)) {
      kick(set, set_fd, fd);
    } else {
      change_registration(set_fd, fd, entry.event);
    }
  }
  merge_waker(told);
  return static_cast<int>(std::remove_if(events, events + count,
                                         [](const epoll_event& one) { return one.events == 0; }) -
                          events);
}

}  // namespace farcall::preload
