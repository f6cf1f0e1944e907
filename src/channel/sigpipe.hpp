// SPDX-License-Identifier: Apache-2.0
//
// Writing to a pipe that nobody reads, without SIGPIPE.
//
// Since Linux 6.18 pwritev2 does it by a flag. Where that is unknown, and for vmsplice, which has
// no such flag, the signal is blocked around the call and taken from the queue: two or three more
// system calls each time. They are left out in a process that ignores SIGPIPE, as most servers do;
// that is looked up once, when the end is opened.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>

namespace farcall::channel {

class PipeSignal {
 public:
  PipeSignal() noexcept;

  // write(2) that does not raise SIGPIPE.
  ssize_t write(int fd, std::span<const std::byte> bytes) const noexcept;

  // Any call that may raise SIGPIPE for this thread when it fails with EPIPE.
  template <class Call>
  auto suppress(Call call) const noexcept {
    if (ignored_) return call();
    const Blocked blocked;
    return call();
  }

 private:
  // Blocks SIGPIPE for this thread; takes the one that came meanwhile, if none was pending before.
  // Keeps errno.
  class Blocked {
   public:
    Blocked() noexcept;
    Blocked(const Blocked&) = delete;
    Blocked& operator=(const Blocked&) = delete;
    ~Blocked();

   private:
    bool pending_before_;
    bool blocked_before_;
  };

  bool ignored_;
};

}  // namespace farcall::channel
