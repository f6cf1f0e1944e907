// SPDX-License-Identifier: Apache-2.0
#include "preload/settle.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "preload/connection.hpp"
#include "preload/fork.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {

namespace detail {
constinit std::atomic<std::uint32_t> unsettled{0};
}  // namespace detail

namespace {

// What only others have put is theirs to look at, until it has lain here for long.
constexpr std::uint64_t kLong = 200 * kTicksPerMicrosecond;

struct Entry {
  Side* side = nullptr;
  std::uint64_t serial = 0;  // of two for the same side, which
  std::uint32_t generation = 0;
  int fd = -1;
  std::uint64_t position = 0;   // the sender's, when somebody last looked
  std::uint64_t looked_at = 0;  // ticks
  bool stalled = false;         // the kernel has taken nothing when it was last asked
};

constexpr std::uint32_t kMost = 1024;
constinit std::array<Entry, kMost> entries{};
constinit std::uint64_t last_serial = 0;
constinit std::uint32_t next_given_up = 0;
constinit Lock entries_lock;
// Of each side, who has put what it stands in there for: nobody, that thread, or several.
constexpr std::uint32_t kSeveral = UINT32_MAX;
constinit std::array<std::atomic<std::uint32_t>, kMostSides> noted{};

std::atomic<std::uint32_t>& noted_of(const Side& side) noexcept { return noted[index_of(side)]; }

// A receiver on this processor may be about to look, and cannot meanwhile.
bool waits_for_this_processor(const Entry& entry) noexcept {
  Side& side = *entry.side;
  const Guard sending(side.send_lock);
  if (!sending || side.generation.load(std::memory_order_relaxed) != entry.generation) return false;
  const Direction* const out = side.out().control;
  const std::uint32_t here = this_processor();
  return out != nullptr && side.sender.unread(side.out()) != 0 &&
         out->receiver_processor.load(std::memory_order_relaxed) == here && !others_compete(here);
}

// Whether the receiver has taken everything, or the kernel has it by now; or nothing more comes of
// this descriptor (`last`). Holds the sender's lock.
bool settle_locked(Entry& entry, bool other_thread, bool last) noexcept {
  Side& side = *entry.side;
  if (side.generation.load(std::memory_order_relaxed) != entry.generation) return true;
  if (side.out().control == nullptr || side.sender.unread(side.out()) == 0) {
    noted_of(side).store(0, std::memory_order_relaxed);
    return true;
  }
  if (other_thread) {
    const std::uint64_t now = now_ticks();
    if (entry.position != side.sender.position()) {
      entry.position = side.sender.position();
      entry.looked_at = now;
      return false;
    }
    if (now - entry.looked_at < kLong) return false;
  }
  // Where the kernel has no room for all of it, the rest is looked at again.
  const std::uint64_t before = side.sender.kernel_sent();
  if (reclaim(side, entry.fd, false) && !last && side.sender.unread(side.out()) != 0) {
    entry.stalled = side.sender.kernel_sent() == before;
    return false;
  }
  noted_of(side).store(0, std::memory_order_relaxed);
  return true;
}

// Who copies lets go of it soon. Who waits for a peer that leaves may not for seconds.
bool lock_unless_held_for_long(Lock& lock) noexcept {
  constexpr unsigned kTries = 200;
  for (unsigned i = 0; i < kTries; ++i) {
    if (lock.try_lock()) return true;
    relax();
  }
  return false;
}

bool settle(Entry& entry, bool other_thread, bool last) noexcept {
  Lock& sending = entry.side->send_lock;
  // What stands in the ring of somebody who holds it for long is that thread's to look at, which is
  // in the middle of sending it through the kernel or of giving it to a peer.
  if (!(other_thread ? lock_unless_held_for_long(sending) : sending.lock())) return false;
  const bool over = settle_locked(entry, other_thread, last);
  sending.unlock();
  return over;
}

void in_child() noexcept {
  // The parent looks at what it has put.
  entries_lock.renew();
  for (std::uint32_t i = 0; i < detail::unsettled.load(std::memory_order_relaxed); ++i) {
    // Another thread may have been taking it out.
    Side* const side = std::exchange(entries[i].side, nullptr);
    if (side != nullptr) noted_of(*side).store(0, std::memory_order_relaxed);
  }
  detail::unsettled.store(0, std::memory_order_relaxed);
}

[[gnu::constructor]] void start() noexcept {
  at_fork({[]() noexcept {}, []() noexcept {}, in_child});
}

// A place of what has waited in vain for room in the kernel; kMost: none of the few that are looked
// at is such. The next bytes that are sent there have it looked at again. The list is locked, and
// full.
std::uint32_t give_up_stalled() noexcept {
  constexpr std::uint32_t kLooks = 16;
  for (std::uint32_t i = 0; i < kLooks; ++i) {
    const std::uint32_t at = next_given_up++ % kMost;
    if (!entries[at].stalled) continue;
    noted_of(*entries[at].side).store(0, std::memory_order_relaxed);
    return at;
  }
  return kMost;
}

}  // namespace

void note_put(Side& side, int fd) noexcept {
  std::atomic<std::uint32_t>& by = noted_of(side);
  const std::uint32_t before = by.load(std::memory_order_relaxed);
  if (before == this_thread() || before == kSeveral) [[likely]]
    return;
  if (before != 0) return by.store(kSeveral, std::memory_order_relaxed);
  const Guard guard(entries_lock);
  const std::uint32_t count = detail::unsettled.load(std::memory_order_relaxed);
  if (!guard) return;  // it is tried again with the next bytes
  const std::uint32_t at = count == kMost ? give_up_stalled() : count;
  if (at == kMost) return;
  entries[at] = {.side = &side,
                 .serial = ++last_serial,
                 .generation = side.generation.load(std::memory_order_relaxed),
                 .fd = fd};
  by.store(this_thread(), std::memory_order_relaxed);
  detail::unsettled.store(std::max(count, at + 1), std::memory_order_relaxed);
}

void forget_put(const Side& side) noexcept { noted_of(side).store(0, std::memory_order_relaxed); }

void detail::settle(bool all, int descriptor) noexcept {
  // From the end: when others take something out meanwhile, the last one comes to its place, which
  // has been looked at by then, or comes to where this has yet to look.
  const std::uint32_t me = this_thread();
  std::uint32_t i = unsettled.load(std::memory_order_relaxed);
  while (i-- != 0) {
    // Copied first: the list is not locked while the kernel is called.
    Entry entry;
    {
      const Guard guard(entries_lock);
      const std::uint32_t count = unsettled.load(std::memory_order_relaxed);
      if (!guard) return;
      if (i >= count) {
        i = count;
        continue;
      }
      entry = entries[i];
    }
    if (descriptor >= 0 && entry.fd != descriptor) continue;
    const std::uint32_t by = noted_of(*entry.side).load(std::memory_order_relaxed);
    const bool other_thread = !all && by != me && by != kSeveral;
    if (!all && !other_thread && !entry.stalled && waits_for_this_processor(entry)) give_turn();
    const bool gone = preload::settle(entry, other_thread, all);
    const Guard guard(entries_lock);
    const std::uint32_t count = unsettled.load(std::memory_order_relaxed);
    // It is in another place by now, or somebody else has taken it out.
    if (i >= count || entries[i].serial != entry.serial) continue;
    if (!gone) {
      entries[i] = entry;
      continue;
    }
    entries[i] = entries[count - 1];
    entries[count - 1].side = nullptr;
    unsettled.store(count - 1, std::memory_order_relaxed);
  }
}

}  // namespace farcall::preload
