// SPDX-License-Identifier: Apache-2.0
#include "preload/holders.hpp"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <limits>
#include <utility>

#include "preload/lock.hpp"
#include "preload/permitted.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

constexpr std::size_t kMost = 256;

struct Place {
  // Whose it is: a process's, or a ticket of a child that is to come, see ticket_of().
  static constexpr std::int64_t kFree = 0;
  static constexpr std::int64_t kLeaving = std::numeric_limits<std::int64_t>::min();
  std::atomic<std::int64_t> holder;
  std::atomic<std::int64_t> since;                                // of a ticket; its parent's
  std::array<std::atomic<std::uint64_t>, kMostSides / 64> sides;  // a bit for each

  std::atomic<std::uint64_t>& word(std::uint32_t side) noexcept {
    return sides[side / 64 % sides.size()];
  }
};
constexpr std::uint64_t bit(std::uint32_t side) noexcept { return std::uint64_t{1} << side % 64; }

using Places = std::array<Place, kMost>;
// Of processes that know each other by the same numbers.
constinit std::atomic<Places*> places{nullptr};
constinit std::atomic<Place*> own{nullptr};
constinit std::atomic<bool> looked{false};  // for a place of its own

struct Child {
  bool has_been_looked_for = false;
  Place* place = nullptr;
  std::int64_t ticket = 0;
};
constinit Child child{};
constinit std::uint32_t tickets = 0;
constinit std::int64_t full_until = 0;

// Never the same one twice of a parent.
std::int64_t ticket_of(pid_t parent) noexcept {
  constexpr std::uint32_t kMostTickets = 1U << 30;
  return -(std::int64_t{++tickets % kMostTickets} << 32 | std::int64_t{parent});
}
std::uint32_t parent_of(std::int64_t ticket) noexcept {
  return static_cast<std::uint32_t>(-ticket);
}

Places* get_places() noexcept {
  Places* found = places.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  const long made = kernel(SYS_mmap, nullptr, sizeof(Places), PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made < 0 && made > -4096) return nullptr;
  auto* const mine = reinterpret_cast<Places*>(made);
  if (places.compare_exchange_strong(found, mine)) return mine;
  kernel(SYS_munmap, mine, sizeof(Places));
  return found;
}

Place* take_place(std::int64_t holder) noexcept {
  Places* const all = get_places();
  if (all == nullptr) return nullptr;
  for (Place& place : *all) {
    std::int64_t free = Place::kFree;
    if (place.holder.load(std::memory_order_relaxed) == Place::kFree &&
        place.holder.compare_exchange_strong(free, holder))
      return &place;
  }
  return nullptr;
}

// It is a child's of this process that has not come, or of a dead one. Others it is not taken
// from: they may be about to say in it what the child holds.
bool is_forgotten(const Place& place, std::int64_t ticket) noexcept {
  constexpr std::int64_t kLong = 10'000'000'000;
  if (parent_of(ticket) != static_cast<std::uint32_t>(own_pid())) return is_dead(parent_of(ticket));
  return monotonic_ns() - place.since.load(std::memory_order_relaxed) > kLong;
}

void drop(std::uint32_t index) noexcept {
  Side* const side = side_at(index);
  if (!side->other_holders_unknown) side->processes.fetch_sub(1, std::memory_order_acq_rel);
}

// What is said there is `true` of a dead process. Of a child that has not come nobody knows whether
// it ever will: it is counted in for ever.
void empty(Place& place, bool is_true) noexcept {
  for (std::uint32_t first = 0; first < kMostSides; first += 64) {
    if (place.word(first).load(std::memory_order_relaxed) == 0) continue;
    std::uint64_t held = place.word(first).exchange(0, std::memory_order_relaxed);
    for (; is_true && held != 0; held &= held - 1)
      drop(first + static_cast<std::uint32_t>(__builtin_ctzll(held)));
  }
  // release: pairs with the exchange in take_place()
  place.holder.store(Place::kFree, std::memory_order_release);
}

// Where there is no room that the dead have left, it is not looked for again at once.
Place* take_place_for_child(std::int64_t ticket) noexcept {
  constexpr std::int64_t kNotForLong = 100'000'000;
  if (Place* const place = take_place(ticket)) return place;
  const std::int64_t now = monotonic_ns();
  if (now < full_until) return nullptr;
  count_out_the_dead();
  Place* const place = take_place(ticket);
  if (place == nullptr) full_until = now + kNotForLong;
  return place;
}

// It makes system calls that not every filter permits.
bool may_look() noexcept { return is_known_to_be_permitted() && !is_confined(); }

}  // namespace

void note_held(std::uint32_t side) noexcept {
  if (places.load(std::memory_order_acquire) == nullptr) return;
  if (!looked.exchange(true, std::memory_order_relaxed)) own.store(take_place(own_pid()));
  if (Place* const place = own.load(std::memory_order_relaxed))
    place->word(side).fetch_or(bit(side), std::memory_order_relaxed);
}

void note_dropped(std::uint32_t side) noexcept {
  if (Place* const place = own.load(std::memory_order_relaxed))
    place->word(side).fetch_and(~bit(side), std::memory_order_relaxed);
}

void note_all_dropped() noexcept {
  looked.store(false, std::memory_order_relaxed);
  if (Place* const place = own.exchange(nullptr)) empty(*place, false);
}

void leave_holders() noexcept {
  note_all_dropped();
  if (Places* const all = places.exchange(nullptr)) kernel(SYS_munmap, all, sizeof(Places));
}

void expect_child() noexcept {
  child = {};
  // There may be room by now.
  if (own.load(std::memory_order_relaxed) == nullptr)
    looked.store(false, std::memory_order_relaxed);
}

void note_held_by_child(std::uint32_t side) noexcept {
  if (!std::exchange(child.has_been_looked_for, true) && may_look()) {
    child.ticket = ticket_of(own_pid());
    child.place = take_place_for_child(child.ticket);
    if (child.place != nullptr) child.place->since.store(monotonic_ns(), std::memory_order_relaxed);
  }
  if (child.place != nullptr)
    child.place->word(side).fetch_or(bit(side), std::memory_order_relaxed);
}

void take_childs_place(pid_t parent) noexcept {
  own.store(nullptr);
  looked.store(false, std::memory_order_relaxed);
  // Elsewhere, as in another PID namespace, numbers mean other processes: it is not known to those
  // who know its parent, nor they to it.
  if (!may_look() || kernel(SYS_getppid) != parent) return places.store(nullptr);
  std::int64_t ticket = child.ticket;
  // release: pairs with the acquire in count_out_the_dead()
  if (child.place == nullptr ||
      !child.place->holder.compare_exchange_strong(ticket, own_pid(), std::memory_order_acq_rel))
    return;
  own.store(child.place);
  looked.store(true, std::memory_order_relaxed);
}

void count_out_the_dead() noexcept {
  Places* const all = places.load(std::memory_order_acquire);
  if (all == nullptr) return;
  for (Place& place : *all) {
    std::int64_t holder = place.holder.load(std::memory_order_acquire);
    if (holder == Place::kFree || holder == Place::kLeaving) continue;
    const bool is_process = holder > 0;
    if (is_process ? !is_dead(static_cast<std::uint32_t>(holder)) : !is_forgotten(place, holder))
      continue;
    // Of several that find it dead only one goes on.
    if (place.holder.compare_exchange_strong(holder, Place::kLeaving)) empty(place, is_process);
  }
}

}  // namespace farcall::preload
