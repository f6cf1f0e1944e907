// SPDX-License-Identifier: Apache-2.0
//
// Sockets of a set with bytes in memory that only the kernel can tell of: it is made to.
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <utility>

#include "preload/address.hpp"
#include "preload/epoll/hot.hpp"
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

void remove_waker(int set_fd) noexcept {
  const int fd = always_ready.load(std::memory_order_relaxed);
  if (is_private(fd)) kernel(SYS_epoll_ctl, set_fd, EPOLL_CTL_DEL, fd, nullptr);
}

// Which of the events is of that: kNotTold where none is, kNoWaker where it is not there.
constexpr int kNoWaker = -2;
constexpr int kNotTold = -1;
int find_waker(const Set& set, const epoll_event* events, int count) noexcept {
  if (!set.has_waker) return kNoWaker;
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
  set.kick_changes.fetch_add(1, std::memory_order_relaxed);
  set.kicked_count.fetch_add(1, std::memory_order_relaxed);
  const bool once = (entry.event.events & EPOLLONESHOT) != 0;
  // Asked once: it may get room at any moment.
  const bool has_room = (poll_now(fd, POLLOUT) & POLLOUT) != 0;
  epoll_event event = entry.event;
  event.events |= EPOLLOUT;
  // Where only the kernel tells, the program may fill the socket before it waits.
  const bool needs_waker = needs_kicks(set) || !has_room;
  // What is told of once is not told of by two events.
  if (!once || !needs_waker) change_registration(set_fd, fd, event);
  if (needs_waker) add_waker(set, set_fd, entry.event);
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

// Whether a socket is registered with that data, or was, and none wants to be told of room.
bool wants_no_room(const Set& set, std::uint64_t data) noexcept {
  bool known = false;
  const std::uint32_t capacity = set.capacity.load(std::memory_order_relaxed);
  for (std::uint32_t fd = 0; fd < capacity; ++fd) {
    const Registration& entry = set.by_fd[fd];
    if (entry.event.events == 0 || entry.event.data.u64 != data) continue;
    known = true;
    if (entry.present && (entry.event.events & EPOLLOUT) != 0) return false;
  }
  return known;
}

// A kick that another thread has undone by now may have woken this one, too.
void remove_undone(const Set& set, const Told& told) noexcept {
  for (int i = 0; i < told.count; ++i) {
    epoll_event& event = told.events[i];
    if ((event.events & EPOLLOUT) != 0 && wants_no_room(set, event.data.u64))
      event.events &= ~std::uint32_t{EPOLLOUT};
  }
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

// What is told of once, and to none of these, may have been given to a thread that has yet to come
// back: asked again, the kernel would tell a second one.
bool may_be_told_elsewhere(const Registration& entry, const Told& told) noexcept {
  return (entry.event.events & EPOLLONESHOT) != 0 &&
         std::none_of(told.events, told.events + told.count, [&](const epoll_event& event) {
           return event.data.u64 == entry.event.data.u64;
         });
}

// It stays kicked, as does what wakes by that, if it is `wakes`.
void leave_to_others(Set& set, Registration& entry, bool wakes) noexcept {
  entry.kicked = true;
  set.kicked_count.fetch_add(1, std::memory_order_relaxed);
  set.has_waker = set.has_waker || wakes;
}

void undo_all(Set& set, int set_fd, Told& told, bool others_sleep) noexcept {
  const bool only_kernel = set.waiters.load(std::memory_order_relaxed) == Waiters::kernel;
  const bool had_waker = std::exchange(set.has_waker, false);
  const std::uint64_t waker_data = set.waker_data;
  for (std::uint32_t index = 0; index < set.capacity.load(std::memory_order_relaxed); ++index) {
    Registration& entry = set.by_fd[index];
    if (!std::exchange(entry.kicked, false) || !entry.present) continue;
    const auto fd = static_cast<int>(index);
    const std::uint64_t position = read_position(fd);
    const bool readable = is_news(entry, position);
    if (readable && others_sleep && may_be_told_elsewhere(entry, told)) {
      leave_to_others(set, entry, had_waker && entry.event.data.u64 == waker_data);
      continue;
    }
    const bool is_told = put_right(set, fd, told, readable);
    if (is_told && readable) entry.reported = position;
    if (is_told && (entry.event.events & EPOLLONESHOT) != 0) {
      disarm(set, set_fd, fd);
    } else if (readable && !is_told && others_sleep) {
      kick(set, set_fd, fd);
    } else if ((only_kernel || !readable) && may_be_news(entry, fd, position)) {
      kick(set, set_fd, fd);
    } else if (entry.event.events == EPOLLONESHOT) {
      disarm(set, set_fd, fd);  // another thread has told of it meanwhile
    } else {
      change_registration(set_fd, fd, entry.event);
    }
  }
  if (had_waker && !set.has_waker) remove_waker(set_fd);
}

}  // namespace

int undo_kicks(Set& set, int set_fd, epoll_event* events, int count, std::uint32_t own) noexcept {
  const Guard guard(set.lock);
  if (!guard || !is_still(set, set_fd)) return count;
  Told told{.events = events, .count = count, .waker = find_waker(set, events, count)};
  remove_undone(set, told);
  // Otherwise others have undone all, and are not called upon to look in their turn.
  if (const std::uint32_t before = set.kicked_count.load(std::memory_order_relaxed); before != 0) {
    // Those may have been woken by what is undone here, and would find nothing.
    undo_all(set, set_fd, told, set.sleepers.load(std::memory_order_relaxed) > own);
    merge_waker(told);
    set.kick_changes.fetch_add(1, std::memory_order_relaxed);
    // release: pairs with the acquire in kernel_told(), for the change
    set.kicked_count.fetch_sub(before, std::memory_order_release);
  }
  return static_cast<int>(std::remove_if(events, events + count,
                                         [](const epoll_event& one) { return one.events == 0; }) -
                          events);
}

}  // namespace farcall::preload
