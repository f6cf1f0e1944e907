// SPDX-License-Identifier: Apache-2.0
#include "preload/handback.hpp"

#include <sys/socket.h>
#include <time.h>

#include "preload/log.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

// The peer may sleep in the kernel. One byte wakes it, which its library takes out again.
void ring_doorbell(Side& side, int fd) noexcept {
  const Guard guard(side.send_lock);
  if (side.out.control == nullptr || side.sender.busy()) return;
  if (side.out.control->doorbell.load(std::memory_order_relaxed) != 0) return;
  // release: pairs with the acquire in without_doorbell()
  side.out.control->doorbell.store(side.sender.kernel_sent() + 1, std::memory_order_release);
  const std::byte bell{};
  side.sender.enter_kernel();
  const long sent = kernel(SYS_sendto, fd, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
  side.sender.leave_kernel(side.out, sent == 1 ? 1 : 0);
  if (sent != 1) side.out.control->doorbell.store(0, std::memory_order_relaxed);
}

// The bytes come, whenever the peer's library runs next; but whoever reads the descriptor from now
// on must not take what is newer for them.
void wait_for_answer(const Direction& asked, int fd) noexcept {
  constexpr int kMostMilliseconds = 1000;
  for (int i = 0; i < kMostMilliseconds * 10; ++i) {
    const std::uint64_t answer = asked.recall_answer.load(std::memory_order_acquire);
    if (answer == kSentAgain) return;
    if (answer == kTooLate) break;
    const timespec moment{.tv_sec = 0, .tv_nsec = 100'000};
    kernel(SYS_nanosleep, &moment, nullptr);
  }
  log(LogLevel::warn, "descriptor %d leaves the library with bytes in flight", fd);
}

}  // namespace

void hand_back(Side& side, int fd, Reason reason) noexcept {
  side.stay_watched.store(true, std::memory_order_relaxed);
  if (reason == Reason::passed) side.other_holders_unknown = true;
  bool first = false;
  {
    const Guard sending(side.send_lock);
    if (side.out.control != nullptr) {
      first = !side.sender.gone_for_ever();
      side.sender.leave_ring(side.out);
    }
  }
  Direction* asked = nullptr;
  {
    const Guard receiving(side.receive_lock);
    if (side.in.control != nullptr) {
      side.receiver.watch_for_ever(side.in);
      if (side.receiver.next(side.in).kind == Receiver::Next::ring) {
        side.receiver.recall(side.in);
        asked = side.in.control;
      }
    }
  }
  if (end_candidacy(side) || first) note_reason(side, reason);
  if (asked != nullptr) {
    ring_doorbell(side, fd);
    wait_for_answer(*asked, fd);
  }
}

void leave_everything() noexcept {
  no_more_candidates();
  const int highest = highest_descriptor();
  for (int fd = 0; fd <= highest; ++fd)
    if (Side* const side = find_side(fd)) hand_back(*side, fd, Reason::passed);
}

}  // namespace farcall::preload
