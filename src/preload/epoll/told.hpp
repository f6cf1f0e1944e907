// SPDX-License-Identifier: Apache-2.0
//
// What the kernel has told of an epoll set, put right for the program.
#pragma once

#include <sys/epoll.h>

#include "preload/epoll/set.hpp"

namespace farcall::preload {

// To what is told of connections that have ended.
void add_resets(Set& set, int set_fd, epoll_event* events, int count) noexcept;

// Takes away what is told of a doorbell alone; of sockets that are registered with their number as
// data, as most are. Returns how many events are left.
int without_doorbells(Set& set, int set_fd, epoll_event* events, int count) noexcept;

}  // namespace farcall::preload
