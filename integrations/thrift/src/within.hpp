// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cerrno>
#include <chrono>

#include "farcall/message.hpp"
#include "farcall/wait.hpp"

namespace farcall::thrift {

// One timeout for several calls in a row, such as those that signals have ended. Not above 0: none.
class Within {
 public:
  explicit Within(std::chrono::milliseconds timeout) : deadline_(deadline_after(timeout)) {}
  [[nodiscard]] Deadline deadline() const noexcept { return deadline_; }
  [[nodiscard]] bool is_over() const noexcept {
    return !deadline_.is_never() && monotonic_ns() >= deadline_.at();
  }
  // Bounds the next call of this thread.
  void start() const {
    if (deadline_.is_never()) return;
    const timespec left = deadline_.left();
    set_message_timeout(std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec));
  }

 private:
  static Deadline deadline_after(std::chrono::milliseconds timeout) noexcept {
    constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365 * 100);
    if (timeout.count() <= 0) return Deadline::never();
    return Deadline::after(timeout < kLongest ? timeout : kLongest);
  }

  Deadline deadline_;
};

// What messages are about calls that a signal has ended: nobody has received what they were to
// send. Calls until one ends otherwise, or the time is over: then EINTR may also be what a far
// server says that was told so.
template <class Call>
auto again_after_signals(const Within& within, Call call) {
  for (;;) {
    within.start();
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
    if (within.is_over()) {
      errno = ETIMEDOUT;
      return result;
    }
  }
}

}  // namespace farcall::thrift
