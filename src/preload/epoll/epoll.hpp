// SPDX-License-Identifier: Apache-2.0
//
// Epoll sets that hold accelerated sockets, of TCP or UDP.
//
// A socket of a set is either watched, and then the kernel tells of it, or hot: its data comes
// through memory, and epoll_wait() looks at it itself. A socket becomes hot when a receive call
// takes it out of the kernel, and is watched again before anybody sleeps in the set, or when it
// has been idle for a while. So a call costs what is active, not what is registered.
//
// Only in a set that is waited for by the calls of this library, in the process that has made it,
// sockets are hot between calls. Whoever waits otherwise, by system calls of its own, in another
// process or through a set around this one, has the kernel alone to wake it; so all is watched
// until epoll_wait() has been called here, and for good once others may wait.
//
// Order of locks: a receiver's lock, then a set's. What is taken out of the hot ones is watched
// afterwards, never before: it may have become hot again in between, which does no harm.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <cstdint>

namespace farcall::preload {

struct Side;

// May the receiving direction of this socket leave the kernel, as far as epoll sets are concerned
// that its descriptor is in? If so it is hot from now on. Holds the receiver's lock.
bool epoll_allows_wake_up(int fd) noexcept;

// A receive call, for which alone the socket had left the kernel, has had it watched again, and has
// left bytes in memory of which the kernel does not know. Holds the receiver's lock.
void epoll_tell_of_rest(int fd) noexcept;

// Whether the kernel has told of anything in the set that `fd` is in since `looked_at` (ticks). It
// need not tell again of what is there, so a receive call must not come back empty unlooked.
bool epoll_told_since(int fd, std::uint64_t looked_at) noexcept;

// The kernel has carried out what epoll_ctl() asks for with these arguments.
void epoll_controlled(int set, int operation, int fd, const epoll_event* event) noexcept;

// Whether `fd` is in an epoll set, or is one.
bool is_registered(int fd) noexcept;
// `side` is what `fd` refers to from now on: has it know if that is in an epoll set.
void note_if_registered(Side& side, int fd) noexcept;
// `fd` is about to be closed. If the socket has other descriptors its registrations stay, under a
// number of which nothing is known any more: only the kernel tells of it from here on.
void leave_what_stays_registered(int fd) noexcept;
// `fd` is about to be closed, or is new.
void forget_registrations(int fd) noexcept;
// `copy` refers to what `fd` refers to.
void epoll_duplicated(int fd, int copy) noexcept;
// No descriptor above it is in the tables.
int highest_known() noexcept;

// This process has ended a connection: what it sends after that by another one is not told of
// before it, so the kernel is asked next. Counts up.
inline constinit std::atomic<std::uint32_t> ends_made{0};

// Somebody is about to wait for this epoll set whom only the kernel serves: from now on it alone
// tells of its sockets. Nothing happens if it is no epoll set.
void leave_to_kernel(int fd) noexcept;
// The same for all sets that a program would inherit which is about to be executed.
void leave_inherited_to_kernel() noexcept;

}  // namespace farcall::preload
