// SPDX-License-Identifier: Apache-2.0
#include "preload/settle.hpp"

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

// What other threads have put is theirs to look at, until it has lain here for long.
constexpr std::uint64_t kLong = 200 * kTicksPerMicrosecond;

struct Entry {
  Side* side = nullptr;
  std::uint64_t serial = 0;  // of two for the same side, which
  std::uint32_t generation = 0;
  std::uint32_t thread = 0;
  int fd = -1;
  std::uint64_t position = 0;   // the sender's, when somebody last looked
  std::uint64_t looked_at = 0;  // ticks
};

constexpr std::uint32_t kMost = 1024;
constinit std::array<Entry, kMost> entries{};
constinit std::uint64_t last_serial = 0;
constinit Lock entries_lock;
// Of each side, whether it stands in there.
constinit std::array<std::atomic<bool>, kMostSides> noted{};

std::atomic<bool>& noted_of(const Side& side) noexcept { return noted[index_of(side)]; }

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

// Whether the receiver has taken everything, or the kernel has it by now. Holds the sender's lock.
bool settle_locked(Entry& entry, bool other_thread) noexcept {
  Side& side = *entry.side;
  if (side.generation.load(std::memory_order_relaxed) != entry.generation) return true;
  if (side.out().control == nullptr || side.sender.unread(side.out()) == 0) {
    noted_of(side).store(false, std::memory_order_relaxed);
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
  reclaim(side, entry.fd, false);
  noted_of(side).store(false, std::memory_order_relaxed);
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

bool settle(Entry& entry, bool other_thread) noexcept {
  Lock& sending = entry.side->send_lock;
  // What stands in the ring of somebody who holds it for long is that thread's to look at, which is
  // in the middle of sending it through the kernel or of giving it to a peer.
  if (!(other_thread ? lock_unless_held_for_long(sending) : sending.lock())) return false;
  const bool over = settle_locked(entry, other_thread);
  sending.unlock();
  return over;
}

void in_child() noexcept {
  // The parent looks at what it has put.
  new (&entries_lock) Lock;
  for (std::uint32_t i = 0; i < detail::unsettled.load(std::memory_order_relaxed); ++i) {
    // Another thread may have been taking it out.
    Side* const side = std::exchange(entries[i].side, nullptr);
    if (side != nullptr) noted_of(*side).store(false, std::memory_order_relaxed);
  }
  detail::unsettled.store(0, std::memory_order_relaxed);
}

[[gnu::constructor]] void start() noexcept {
  at_fork({[]() noexcept {}, []() noexcept {}, in_child});
}

}  // namespace

void note_put(Side& side, int fd) noexcept {
  std::atomic<bool>& is_noted = noted_of(side);
  if (is_noted.load(std::memory_order_relaxed)) [[likely]]
    return;
  const Guard guard(entries_lock);
  const std::uint32_t count = detail::unsettled.load(std::memory_order_relaxed);
  if (!guard || count == kMost) return;  // it is tried again with the next bytes
  entries[count] = {.side = &side,
                    .serial = ++last_serial,
                    .generation = side.generation.load(std::memory_order_relaxed),
                    .thread = this_thread(),
                    .fd = fd};
  is_noted.store(true, std::memory_order_relaxed);
  detail::unsettled.store(count + 1, std::memory_order_relaxed);
}

void forget_put(const Side& side) noexcept {
  noted_of(side).store(false, std::memory_order_relaxed);
}

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
    const bool other_thread = !all && entry.thread != me;
    if (!all && !other_thread && waits_for_this_processor(entry)) give_turn();
    const bool gone = preload::settle(entry, other_thread);
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
