// SPDX-License-Identifier: Apache-2.0
#include "preload/handback.hpp"

#include "preload/log.hpp"

namespace farcall::preload {

void hand_back(Side& side, int fd, Reason reason) noexcept {
  side.stay_watched.store(true, std::memory_order_relaxed);
  bool first = false;
  {
    const Guard sending(side.send_lock);
    if (side.out.control != nullptr) {
      first = !side.sender.gone_for_ever();
      side.sender.leave_ring(side.out);
    }
  }
  bool left = false;
  {
    const Guard receiving(side.receive_lock);
    if (side.in.control != nullptr) {
      side.receiver.watch_for_ever(side.in);
      left = side.receiver.next(side.in).kind == Receiver::Next::ring;
    }
  }
  std::uint32_t stage = Side::kCandidate;
  if (side.stage.compare_exchange_strong(stage, Side::kNever) || first) note_reason(side, reason);
  if (left) log(LogLevel::warn, "descriptor %d leaves the library with bytes unread", fd);
}

}  // namespace farcall::preload
