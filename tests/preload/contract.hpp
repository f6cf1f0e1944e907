// SPDX-License-Identifier: Apache-2.0
//
// What the tests of the contract share.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "children.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {

using namespace std::chrono_literals;

inline void set_nonblocking(int fd) {
  ASSERT_EQ(::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
}

inline short poll_once(int fd, short events, int timeout = 0) {
  pollfd wait{.fd = fd, .events = events, .revents = 0};
  EXPECT_GE(::poll(&wait, 1, timeout), 0);
  return wait.revents;
}

}  // namespace farcall::preload
