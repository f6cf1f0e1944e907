// SPDX-License-Identifier: Apache-2.0
//
// An epoll set as this process knows it: the sockets in it, and those at which it looks itself.
//
// A set is an object to which several descriptors can refer, as in the kernel. Sets stand in memory
// that is never given back, so whoever waits in a set that another thread closes still finds a set,
// and its lock. What grows with the descriptors in a set is mapped as long as there is one.
//
// Order of locks: a receiver's, that of all sets, a set's.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

#include "preload/lock.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

struct Registration {
  std::uint64_t reported;  // what read_position() was when it was last told of; for edges
  epoll_event event;
  int hot_fd;  // of another one: the list of hot descriptors runs through here, see hot_at()
  std::uint16_t idle;
  bool present;
  bool hot;
  bool kicked;
  bool waits_for_room;  // see Set::wait_for_room
};

// Who waits in a set, as far as this process can know.
enum class Waiters : std::uint8_t {
  unknown,    // nobody has called the library yet: perhaps they go round it
  here,       // the calls of this library, in this process alone
  inherited,  // a parent has made the set; nothing has been done with it here
  kernel,     // somebody whom only the kernel serves; for good
};

struct alignas(128) Set {
  Lock lock;
  std::atomic<Waiters> waiters{Waiters::unknown};
  std::atomic<std::uint32_t> sleepers{0};  // threads that sleep in the kernel
  std::atomic<std::uint32_t> hot_count{0};
  std::atomic<std::uint32_t> kicked_count{0};
  std::atomic<std::uint32_t> kick_changes{0};   // kicks made, and undone
  std::atomic<std::uint32_t> wait_for_room{0};  // to send; the kernel tells of it in every call
  std::atomic<std::uint64_t> told_at{0};        // ticks, when the kernel last told of something
  // Shared with children, see known_elsewhere(); null: never only here.
  std::atomic<std::uint32_t>* known_here = nullptr;
  std::uint32_t generation = 0;   // another one for each set that stands here
  std::uint32_t descriptors = 0;  // that refer to it; 0: not in use
  std::uint32_t calls = 0;
  std::uint32_t next_hot = 0;  // where the next look at the hot ones begins
  bool kernel_next = false;    // the rings have filled a call: the kernel is asked first
  bool has_waker = false;      // see add_waker()
  std::uint64_t waker_data = 0;
  std::uint32_t ends_told = 0;  // of ends_made: those that the kernel has been asked after
  std::uint64_t looked_at = 0;
  Patience patience;
  Registration* by_fd = nullptr;  // `capacity` of them, under the lock
  std::atomic<std::uint32_t> capacity{0};
};

// The set that a descriptor refers to, or null.
Set* find_set(int fd) noexcept;
// One that refers to the set, or -1.
int descriptor_of(const Set& set) noexcept;
// epoll_create() has returned `fd`, or (`made_here` is false) it is used as a set but nobody knows
// who made it. Null: no room.
Set* make_set(int fd, bool made_here) noexcept;
// `copy` refers to the same set as `fd`.
void set_duplicated(int fd, int copy) noexcept;
// `fd` refers to its set no longer. With the last descriptor the set goes.
void forget_set(int fd) noexcept;

// The one set that a descriptor is registered in, or null; `several` if there are more.
Set* set_with(int fd, bool& several) noexcept;
void join_set(Set& set, int fd) noexcept;
void leave_set(Set& set, int fd) noexcept;
// It leaves all of them. `visit` is called with each that it may be in.
template <class Visit>
void leave_all_sets(int fd, Visit visit) noexcept;

bool is_set(int fd) noexcept;
bool is_in_set(int fd) noexcept;
// No descriptor above it is in the tables of sets.
int highest_in_sets() noexcept;

// This is a child with a copy of its parent's memory: in the kernel its sets are its parent's.
void inherit_sets() noexcept;

// Room for the registration of `fd`; false: no memory.
bool make_room(Set& set, int fd) noexcept;

// Whether another process uses the set that this one has made.
inline bool known_elsewhere(const Set& set) noexcept {
  // acquire: pairs with the release in tell_maker()
  return set.known_here == nullptr ||
         set.known_here->load(std::memory_order_acquire) != set.generation;
}
void tell_maker(const Set& set) noexcept;

// Whether the set may look at sockets itself, and leave them unwatched between calls.
inline bool looks_itself(const Set& set) noexcept {
  return set.waiters.load(std::memory_order_relaxed) == Waiters::here && !known_elsewhere(set);
}

// --- under the set's lock

inline Registration* find_registration(Set& set, int fd) noexcept {
  if (static_cast<std::uint32_t>(fd) >= set.capacity.load(std::memory_order_relaxed))
    return nullptr;
  Registration& entry = set.by_fd[fd];
  return entry.present ? &entry : nullptr;
}
inline int& hot_at(Set& set, std::uint32_t index) noexcept { return set.by_fd[index].hot_fd; }

void make_hot(Set& set, int fd) noexcept;
// What is registered for `fd` has changed, or it is no longer.
void count_wait_for_room(Set& set, int fd) noexcept;
void make_cold(Set& set, int fd) noexcept;
// Takes the first `most` hot ones out; returns their number.
std::uint32_t take_hot(Set& set, int* taken, std::uint32_t most) noexcept;

// ---

namespace detail {
Set* take_membership(int fd, bool& several) noexcept;
Set* set_number(std::uint16_t index) noexcept;  // null: there are not so many
}  // namespace detail

template <class Visit>
void leave_all_sets(int fd, Visit visit) noexcept {
  bool several = false;
  Set* const only = detail::take_membership(fd, several);
  if (only != nullptr) visit(*only);
  for (std::uint16_t i = 0; several; ++i) {
    Set* const set = detail::set_number(i);
    if (set == nullptr) break;
    visit(*set);
  }
}

}  // namespace farcall::preload
