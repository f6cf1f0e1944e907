// SPDX-License-Identifier: Apache-2.0
#include "preload/epoll/told.hpp"

#include <algorithm>
#include <array>

#include "preload/address.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/epoll/hot.hpp"
#include "preload/handback.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// Each is asked without the set's lock, before which its own comes.
void add_resets_now(Set& set, int set_fd, epoll_event* events, int count) noexcept {
  struct Ended {
    int fd, event;
  };
  std::array<Ended, 32> ended;
  std::size_t known = 0;
  {
    const Guard guard(set.lock);
    if (!guard || !is_still(set, set_fd)) return;
    const auto capacity = static_cast<int>(set.capacity.load(std::memory_order_relaxed));
    for (int fd = 0; fd < capacity && known < ended.size(); ++fd) {
      const Registration& entry = set.by_fd[fd];
      if (!entry.present || find_side(fd) == nullptr) continue;
      for (int i = 0; i < count && known < ended.size(); ++i)
        if ((events[i].events & (EPOLLHUP | EPOLLRDHUP)) != 0 &&
            events[i].data.u64 == entry.event.data.u64)
          ended[known++] = {.fd = fd, .event = i};
    }
  }
  for (std::size_t i = 0; i < known; ++i)
    if (knows_of_reset(ended[i].fd)) events[ended[i].event].events |= EPOLLERR | EPOLLHUP;
}

bool any_hung_up(const epoll_event* events, int count) noexcept {
  return std::any_of(events, events + count, [](const epoll_event& event) {
    return (event.events & (EPOLLHUP | EPOLLRDHUP)) != 0;
  });
}

bool may_be_doorbell(const epoll_event& event) noexcept {
  if ((event.events & kInput) == 0) return false;
  const Side* const side = find_side(event.data.fd);
  const Direction* const in = side == nullptr ? nullptr : side->in().control;
  return in != nullptr && in->doorbell.load(std::memory_order_relaxed) != 0;
}

int without_doorbells_now(Set& set, int set_fd, epoll_event* events, int count) noexcept {
  for (epoll_event* one = events; one != events + count;) {
    const int fd = one->data.fd;
    std::uint32_t wanted = 0;
    if (may_be_doorbell(*one)) {
      const Guard guard(set.lock);
      if (guard && is_still(set, set_fd) &&
          static_cast<std::uint32_t>(fd) < set.capacity.load(std::memory_order_relaxed)) {
        const Registration& entry = set.by_fd[fd];
        // One shot has been fired.
        if (entry.present && entry.event.data.u64 == one->data.u64 &&
            (entry.event.events & EPOLLONESHOT) == 0)
          wanted = entry.event.events;
      }
    }
    Side* const side = wanted != 0 ? find_side(fd) : nullptr;
    if (side != nullptr && take_doorbell_told(*side, fd))
      one->events = static_cast<std::uint16_t>(poll_now(fd, static_cast<short>(wanted)));
    if (one->events != 0)
      ++one;
    else
      *one = events[--count];
  }
  return count;
}

}  // namespace

void add_resets(Set& set, int set_fd, epoll_event* events, int count) noexcept {
  if (any_hung_up(events, count)) [[unlikely]]
    add_resets_now(set, set_fd, events, count);
}

int without_doorbells(Set& set, int set_fd, epoll_event* events, int count) noexcept {
  const bool any = std::any_of(events, events + count, may_be_doorbell);
  return any ? without_doorbells_now(set, set_fd, events, count) : count;
}

}  // namespace farcall::preload
