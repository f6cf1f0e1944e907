// SPDX-License-Identifier: Apache-2.0
//
// Leave to send pieces, which the receiver of a long request or answer gives the sender. So much
// that the line is not idle, and so little that others' messages do not wait behind it for long: it
// begins with two, and is doubled and halved by how fast they come.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "bridge/wire.hpp"

namespace farcall::bridge {

class Window {
 public:
  using Clock = std::chrono::steady_clock;

  // So many pieces may come, for a start.
  std::uint64_t open(Clock::time_point now = Clock::now()) noexcept {
    size_ = granted_ = 2;
    since_ = now;
    return granted_;
  }
  [[nodiscard]] bool is_open() const noexcept { return granted_ != 0; }
  // One has come: so many more may, which the sender is to be told unless it is none.
  std::uint64_t take(Clock::time_point now = Clock::now()) noexcept {
    --granted_;
    if (granted_ > size_ / 2) return 0;
    const auto took = now - since_;
    since_ = now;
    if (took < kFast) size_ = std::min(2 * size_, kWindow);
    if (took > kSlow) size_ = std::max<std::uint64_t>(size_ / 2, 1);
    const std::uint64_t more = size_ > granted_ ? size_ - granted_ : 0;
    granted_ += more;
    return more;
  }

 private:
  static constexpr std::chrono::milliseconds kFast{25};  // for about half of a window
  static constexpr std::chrono::milliseconds kSlow{250};

  std::uint64_t size_ = 0;
  std::uint64_t granted_ = 0;
  Clock::time_point since_;
};

// Whether a transfer is only there to have something held for it: it has not even come on by a
// piece in each bound, of all the time that it has taken. Of such crumbs no end would come. The
// time is negative where the transfer has begun after a look at all transfers: so all is signed.
inline bool is_too_slow(Window::Clock::duration taken, std::uint64_t bytes,
                        Window::Clock::duration bound) noexcept {
  return taken > bound * static_cast<Window::Clock::rep>(2 + bytes / kPieceBytes);
}

}  // namespace farcall::bridge
