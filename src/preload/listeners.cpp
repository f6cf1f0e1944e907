// SPDX-License-Identifier: Apache-2.0
#include "preload/listeners.hpp"

#include <poll.h>

#include <algorithm>

#include "preload/real.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kMost = 1024;
constexpr std::uint64_t kShare = 16;  // of the descriptors that there may be, one in so many
constexpr std::int64_t kLongEnough = 1'000'000'000;

// A side that listens: its generation and, in the low half, its number plus one. 0: nobody.
struct Place {
  std::atomic<std::uint64_t> who;
  std::atomic<std::int64_t> since;
};
constinit std::array<Place, kMost> places{};
constinit std::atomic<std::uint32_t> taken{0};
constinit std::atomic<std::uint32_t> next{0};         // where the next search begins
constinit std::atomic<std::int64_t> nobody_until{0};  // before then nobody has waited long enough
constinit std::atomic<std::uint64_t> limit{0};        // RLIMIT_NOFILE, when it was last asked for

std::uint64_t name_of(const Side& side) noexcept {
  return std::uint64_t{side.generation.load(std::memory_order_relaxed)} << 32 |
         (index_of(side) + 1);
}

void free_place(Place& place, std::uint64_t who) noexcept {
  if (place.who.compare_exchange_strong(who, 0)) taken.fetch_sub(1, std::memory_order_relaxed);
}

// Whether its peer has been there, and it only has to look.
bool has_guest(const Side& side) noexcept {
  pollfd look{.fd = side.listener, .events = POLLIN, .revents = 0};
  const timespec at_once{};
  return side.guest >= 0 || kernel(SYS_ppoll, &look, 1, &at_once, nullptr, kKernelMaskSize) > 0;
}

// It may listen again when its turn comes. False: somebody takes a step with it; or, unless there
// is `need`, its turn has come.
bool stop(Place& place, bool need) noexcept {
  const std::uint64_t who = place.who.load(std::memory_order_relaxed);
  Side* const side = side_at(static_cast<std::uint32_t>(who) - 1);
  if (who == 0 || side == nullptr) return false;
  // Nobody closes its descriptor meanwhile.
  const Guard guard(life_lock());
  if (!guard) return false;
  if (name_of(*side) != who) {
    free_place(place, who);
    return true;
  }
  if (side->advancing.exchange(true, std::memory_order_acquire)) return false;
  const bool spared = !need && has_guest(*side);
  std::uint32_t stage = Side::kListening;
  if (spared)
    place.since.store(monotonic_ns(), std::memory_order_relaxed);
  else if (side->stage.compare_exchange_strong(stage, Side::kCandidate))
    stop_listening(*side);
  if (!spared) free_place(place, who);
  side->advancing.store(false, std::memory_order_release);
  return !spared;
}

// Of the first `most`, one that has waited for long.
bool stop_oldest(std::uint32_t most) noexcept {
  const std::int64_t now = monotonic_ns();
  if (now < nobody_until.load(std::memory_order_relaxed)) return false;
  Place* oldest = nullptr;
  std::int64_t since = now;
  for (std::uint32_t i = 0; i < most; ++i) {
    const std::int64_t began = places[i].since.load(std::memory_order_relaxed);
    if (places[i].who.load(std::memory_order_relaxed) == 0 || began >= since) continue;
    oldest = &places[i];
    since = began;
  }
  if (now - since >= kLongEnough) return oldest != nullptr && stop(*oldest, false);
  nobody_until.store(since + kLongEnough, std::memory_order_relaxed);
  return false;
}

bool take_place(Side& side, std::uint32_t most) noexcept {
  const std::uint64_t who = name_of(side);
  const std::uint32_t first = next.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < most; ++i) {
    const std::uint32_t at = (first + i) % most;
    std::uint64_t nobody = 0;
    if (places[at].who.load(std::memory_order_relaxed) != 0 ||
        !places[at].who.compare_exchange_strong(nobody, who))
      continue;
    places[at].since.store(monotonic_ns(), std::memory_order_relaxed);
    next.store(at + 1, std::memory_order_relaxed);
    taken.fetch_add(1, std::memory_order_relaxed);
    side.listener_place = at;
    return true;
  }
  return false;
}

// How many of that many descriptors.
std::uint32_t share_of(std::uint64_t most_fds) noexcept {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(most_fds / kShare, 1, kMost));
}

}  // namespace

bool may_join_listeners() noexcept {
  const std::uint64_t most_fds = limit.load(std::memory_order_relaxed);
  return most_fds == 0 || taken.load(std::memory_order_relaxed) < share_of(most_fds) ||
         monotonic_ns() >= nobody_until.load(std::memory_order_relaxed);
}

bool join_listeners(Side& side, int fd) noexcept {
  const std::uint64_t most_fds = ask_descriptor_limit();
  limit.store(most_fds, std::memory_order_relaxed);
  if (static_cast<std::uint64_t>(fd) >= most_fds / 4 * 3) return false;
  const std::uint32_t most = share_of(most_fds);
  if (taken.load(std::memory_order_relaxed) >= most && !stop_oldest(most)) return false;
  return take_place(side, most);
}

void leave_listeners(Side& side) noexcept {
  if (side.listener_place < kMost) free_place(places[side.listener_place], name_of(side));
}

void make_way_for(int fd) noexcept {
  if (taken.load(std::memory_order_relaxed) == 0) [[likely]]
    return;
  if (static_cast<std::uint64_t>(fd) >= limit.load(std::memory_order_relaxed) / 8 * 7) make_way();
}

bool make_way() noexcept {
  if (taken.load(std::memory_order_relaxed) == 0 || !in_own_process()) return false;
  bool any = false;
  for (Place& place : places) any = stop(place, true) || any;
  return any;
}

void forget_listeners() noexcept {
  for (Place& place : places) place.who.store(0, std::memory_order_relaxed);
  taken.store(0, std::memory_order_relaxed);
  nobody_until.store(0, std::memory_order_relaxed);
}

}  // namespace farcall::preload
