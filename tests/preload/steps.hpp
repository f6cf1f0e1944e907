// SPDX-License-Identifier: Apache-2.0
//
// A child that goes on when it is told to, by calls that no library sees: what it has sent lies
// where it has put it, and nobody settles that before.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "farcall/memory.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

class Steps {
 public:
  Steps() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    told_ = UniqueFd(ends[0]);
    tells_ = UniqueFd(ends[1]);
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    answered_ = UniqueFd(ends[0]);
    answers_ = UniqueFd(ends[1]);
  }
  Steps(const Steps&) = delete;
  Steps& operator=(const Steps&) = delete;

  // In the child: until it is told, and that it has done it.
  void await() const {
    char byte;
    if (kernel(SYS_read, told_.get(), &byte, 1) != 1) kernel(SYS_exit_group, 3);
  }
  void done() const { kernel(SYS_write, answers_.get(), "d", 1); }
  // In the parent.
  void tell() const { EXPECT_EQ(kernel(SYS_write, tells_.get(), "t", 1), 1); }
  void await_done() const {
    char byte;
    EXPECT_EQ(kernel(SYS_read, answered_.get(), &byte, 1), 1);
  }
  void step() const {
    tell();
    await_done();
  }

 private:
  UniqueFd told_, tells_, answered_, answers_;
};

// Before any sleep, so also before one that waits for nothing here, the library moves to the kernel
// what this process has sent and nobody has taken.
class Settling {
 public:
  Settling() {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    out_ = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
  }
  void settle() const {
    pollfd nothing{.fd = out_.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&nothing, 1, 1), 0);
  }

 private:
  UniqueFd out_, in_;
};

}  // namespace farcall::preload
