// SPDX-License-Identifier: Apache-2.0
#include "preload/epoll/epoll.hpp"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>

#include "preload/between_calls.hpp"
#include "preload/epoll/hot.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"

namespace farcall::preload {
namespace {

#ifdef SYS_epoll_create
constinit real::Direct<"epoll_create", int(int), int> next_epoll_create{SYS_epoll_create};
#endif
constinit real::Direct<"epoll_create1", int(int), int> next_epoll_create1{SYS_epoll_create1};
constinit real::Direct<"epoll_ctl", int(int, int, int, epoll_event*), int, int, int, epoll_event*>
    next_epoll_ctl{SYS_epoll_ctl};

// A watched socket has bytes in memory: the set looks at it, and whom only the kernel wakes is
// woken, as are those who sleep, unless this thread tells of it next. The set's lock is held.
void tell(Set& set, int set_fd, int fd, bool of_sleepers) noexcept {
  make_hot(set, fd);
  const bool asleep = of_sleepers && set.sleepers.load(std::memory_order_relaxed) != 0;
  if ((asleep || needs_kicks(set)) && is_still(set, set_fd)) kick(set, set_fd, fd);
}

}  // namespace

bool watch_taken(Set& set, int set_fd, const int* taken, std::uint32_t count,
                 bool tells_next) noexcept {
  bool news = false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!watch(taken[i])) continue;
    const Guard guard(set.lock);
    const Registration* const entry = find_registration(set, taken[i]);
    if (!guard || entry == nullptr || !may_be_news(*entry, taken[i], read_position(taken[i])))
      continue;
    news = true;
    tell(set, set_fd, taken[i], !tells_next);
  }
  return news;
}

bool watch_all(Set& set, int set_fd, bool tells_next) noexcept {
  std::array<int, kMostHot> taken;
  bool news = false;
  // Those that are put back stand behind those that are left.
  std::uint32_t left = set.hot_count.load(std::memory_order_relaxed);
  while (left != 0) {
    std::uint32_t count = 0;
    if (const Guard guard(set.lock); guard)
      count = take_hot(set, taken.data(), std::min(left, kMostHot));
    if (count == 0) break;
    left -= count;
    news = watch_taken(set, set_fd, taken.data(), count, tells_next) || news;
  }
  return news;
}

namespace {

// What is in a set that a parent has made is known, but not which of it the parent looks at.
void watch_inherited(Set& set, int set_fd) noexcept {
  for (int fd = 0;; ++fd) {
    {
      const Guard guard(set.lock);
      if (!guard || static_cast<std::uint32_t>(fd) >= set.capacity.load(std::memory_order_relaxed))
        return;
      set.by_fd[fd].hot = false;
      if (!set.by_fd[fd].present) continue;
    }
    watch_taken(set, set_fd, &fd, 1, false);
  }
}

}  // namespace

void leave_set_to_kernel(Set& set, int set_fd) noexcept {
  Waiters before;
  {
    const Guard guard(set.lock);
    before = set.waiters.exchange(Waiters::kernel, std::memory_order_relaxed);
    // Nobody makes a socket hot from here on where the set was made.
    if (before == Waiters::inherited) tell_maker(set);
  }
  if (before == Waiters::inherited)
    watch_inherited(set, set_fd);
  else if (before != Waiters::kernel)
    watch_all(set, set_fd, false);
}

namespace {

// A set knows of one descriptor only.
bool several_refer_to(int fd) noexcept {
  if (const Side* const side = find_side(fd)) return local_references(*side) > 1;
  const UdpSocket* const udp = find_udp(fd);
  return udp != nullptr && udp->references.load(std::memory_order_relaxed) > 1;
}

// Watches it unless the set looks at it from now on. True if there is something to read that the
// kernel does not know of, maybe behind what it knows, and the set must be told.
bool settle(int fd) noexcept {
  if (Side* const side = find_side(fd)) {
    const Guard guard(side->receive_lock);
    if (!guard || side->in().control == nullptr) return false;
    note_put_back(*side);
    if (may_stay_unwatched(*side, fd, false)) {
      if (side->receiver.watched()) side->receiver.unwatch(side->in());
      if (!side->receiver.watched()) return false;
    }
    if (!side->receiver.watched()) side->receiver.watch(side->in());
    return side->receiver.held(side->in()) != 0;
  } else if (UdpSocket* const udp = find_udp(fd)) {
    if (!udp_needs_watch(*udp, fd)) return false;
  }
  return watch(fd);
}

void note_registered(Side& side) noexcept {
  pid_t before = side.registered_by.load(std::memory_order_relaxed);
  while (before != own_pid() && before != Side::kSeveral &&
         !side.registered_by.compare_exchange_weak(before, before == 0 ? own_pid() : Side::kSeveral,
                                                   std::memory_order_relaxed)) {
  }
}

void unregistered(Set& set, int fd) noexcept {
  {
    const Guard guard(set.lock);
    if (Registration* const entry = find_registration(set, fd); guard && entry != nullptr) {
      make_cold(set, fd);
      entry->present = false;
      count_wait_for_room(set, fd);
    }
  }
  leave_set(set, fd);
  Side* const side = find_side(fd);
  if (side == nullptr) {
    watch(fd);
    return;
  }
  const Guard guard(side->receive_lock);
  if (!guard || side->in().control == nullptr) return;
  side->out_of_set = true;
  if (!side->receiver.watched() && !will_be_put_back(*side)) side->receiver.watch(side->in());
}

void registered(int set_fd, int operation, int fd, const epoll_event& event) noexcept {
  leave_to_kernel(fd);
  Set* set = find_set(set_fd);
  if (set == nullptr) set = make_set(set_fd, false);
  // Nobody looks at what cannot be noted: it must stay with the kernel.
  if (set == nullptr || !make_room(*set, fd)) return leave_socket_to_kernel(fd);
  if (set->waiters.load(std::memory_order_relaxed) == Waiters::inherited)
    leave_set_to_kernel(*set, set_fd);
  join_set(*set, fd);
  {
    const Guard guard(set->lock);
    if (!guard || static_cast<std::uint32_t>(fd) >= set->capacity.load(std::memory_order_relaxed))
      return leave_socket_to_kernel(fd);
    Registration& entry = set->by_fd[fd];
    if (operation == EPOLL_CTL_ADD) make_cold(*set, fd);
    entry.event = event;
    entry.present = true;
    count_wait_for_room(*set, fd);
    entry.kicked = false;
    entry.reported = kNothingToRead;
    // Already looked at, and nobody sleeps who would not know.
    if (entry.hot && set->sleepers.load(std::memory_order_relaxed) == 0) return;
  }
  if (!is_ours(fd)) return;
  if (Side* const side = find_side(fd)) note_registered(*side);
  if (operation == EPOLL_CTL_ADD && several_refer_to(fd)) leave_socket_to_kernel(fd);
  if ((event.events & kInput) == 0 || !settle(fd)) return;
  // The kernel does not know that there is something to read.
  const Guard guard(set->lock);
  Registration* const entry = find_registration(*set, fd);
  if (!guard || entry == nullptr) return;
  tell(*set, set_fd, fd, true);
}

void tell_of_rest(Set& set, int fd) noexcept {
  const Guard guard(set.lock);
  const Registration* const entry = guard ? find_registration(set, fd) : nullptr;
  // A set of a parent is looked at when it is first used here.
  if (entry == nullptr || set.waiters.load(std::memory_order_relaxed) == Waiters::inherited ||
      !is_news(*entry, read_position(fd)))
    return;
  const int set_fd = descriptor_of(set);
  if (set_fd >= 0) tell(set, set_fd, fd, true);
}

[[gnu::constructor]] void start() noexcept {
#ifdef SYS_epoll_create
  next_epoll_create.look_up();
#endif
  next_epoll_create1.look_up();
  next_epoll_ctl.look_up();
}

}  // namespace

void epoll_controlled(int set, int operation, int fd, const epoll_event* event) noexcept {
  if (operation != EPOLL_CTL_DEL)
    registered(set, operation, fd, *event);
  else if (Set* const known = find_set(set))
    unregistered(*known, fd);
}

bool epoll_allows_wake_up(int fd) noexcept {
  bool several = false;
  Set* const set = set_with(fd, several);
  if (set == nullptr) return !several;
  const Guard guard(set->lock);
  const Registration* const entry = guard ? find_registration(*set, fd) : nullptr;
  if (entry == nullptr || !looks_itself(*set) ||
      set->sleepers.load(std::memory_order_relaxed) != 0 ||
      (entry->event.events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) != 0 ||
      (!entry->hot && set->hot_count.load(std::memory_order_relaxed) >= kMostHot))
    return false;
  if (!entry->hot && !set->patience.pays(peer_processor(fd))) return false;
  make_hot(*set, fd);
  return true;
}

void epoll_tell_of_rest(int fd) noexcept {
  if (!is_in_set(fd) || !in_own_process()) [[likely]]
    return;
  bool several = false;
  if (Set* const only = set_with(fd, several)) return tell_of_rest(*only, fd);
  for (std::uint16_t i = 0; several; ++i) {
    Set* const set = detail::set_number(i);
    if (set == nullptr) break;
    tell_of_rest(*set, fd);
  }
}

bool epoll_told_since(int fd, std::uint64_t looked_at) noexcept {
  bool several = false;
  const Set* const set = set_with(fd, several);
  return several || (set != nullptr && set->told_at.load(std::memory_order_relaxed) >= looked_at);
}

void note_if_registered(Side& side, int fd) noexcept {
  if (is_in_set(fd)) note_registered(side);
}

bool is_registered(int fd) noexcept { return is_in_set(fd) || is_set(fd); }

int highest_known() noexcept { return std::max(highest_descriptor(), highest_in_sets()); }

void leave_what_stays_registered(int fd) noexcept {
  if (!is_in_set(fd) || !in_own_process() || !several_refer_to(fd)) [[likely]]
    return;
  // What is in memory by now comes by the kernel when its sender sleeps.
  leave_socket_to_kernel(fd);
  if (UdpSocket* const udp = find_udp(fd)) udp_leave(*udp);
}

void forget_registrations(int fd) noexcept {
  if (!is_registered(fd) || !in_own_process()) [[likely]]
    return;
  leave_all_sets(fd, [fd](Set& set) noexcept {
    const Guard guard(set.lock);
    Registration* const entry = find_registration(set, fd);
    if (!guard || entry == nullptr) return;
    make_cold(set, fd);
    entry->present = false;
    count_wait_for_room(set, fd);
  });
  Set* const set = find_set(fd);
  if (set == nullptr) return;
  if (set->descriptors == 1) {
    // Nobody looks at its sockets any more. A child that closes it has no say in what others do.
    // The number may be another set's in the kernel by now, which is none of these sockets'.
    const Waiters before = set->waiters.exchange(Waiters::kernel, std::memory_order_relaxed);
    if (before != Waiters::inherited) watch_all(*set, -1, false);
  }
  forget_set(fd);
}

void epoll_duplicated(int fd, int copy) noexcept {
  if (!is_set(fd)) [[likely]]
    return;
  // A child that runs on this memory passes it on to another program.
  if (in_own_process())
    set_duplicated(fd, copy);
  else
    leave_to_kernel(fd);
}

void leave_to_kernel(int fd) noexcept {
  Set* const set = find_set(fd);
  if (set == nullptr || set->waiters.load(std::memory_order_relaxed) == Waiters::kernel) [[likely]]
    return;
  leave_set_to_kernel(*set, fd);
}

void leave_inherited_to_kernel() noexcept {
  for (int fd = 0; fd <= highest_in_sets(); ++fd) {
    if (!is_set(fd)) continue;
    const long flags = kernel(SYS_fcntl, fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) leave_to_kernel(fd);
  }
}

}  // namespace farcall::preload

using namespace farcall::preload;

namespace {

int created(long fd) noexcept {
  if (fd >= 0) {
    forget_registrations(static_cast<int>(fd));
    if (in_own_process()) make_set(static_cast<int>(fd), true);
  }
  return static_cast<int>(with_errno(fd));
}

}  // namespace

extern "C" {

int epoll_create(int size) {
#ifdef SYS_epoll_create
  return created(next_epoll_create(size));
#else
  return created(size <= 0 ? -EINVAL : next_epoll_create1(0));
#endif
}

int epoll_create1(int flags) { return created(next_epoll_create1(flags)); }

int epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  const long result = next_epoll_ctl(set, operation, fd, event);
  if (result == 0 && !is_confined()) epoll_controlled(set, operation, fd, event);
  return static_cast<int>(with_errno(result));
}

}  // extern "C"
