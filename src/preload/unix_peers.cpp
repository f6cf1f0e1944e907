// SPDX-License-Identifier: Apache-2.0
#include "preload/unix_peers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "preload/awaited_peers.hpp"
#include "preload/fork.hpp"
#include "preload/look_budget.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

// So many are told of together for less than they would cost one by one.
constexpr std::uint32_t kWorthAll = 32;
// One in so many of all sockets: they may be told of whatever the time.
constexpr std::uint32_t kShareOfAll = 8;

// What is known of a side's peer.
struct Entry {
  std::uint32_t generation;  // of the side
  std::uint32_t number;      // of its own socket
  bool waiting;
  FoundSocket peer;  // with a number alone at first; without: not known
};

constinit std::array<Entry, kMostSides> entries{};
constinit std::uint32_t end_of_entries = 0;  // behind the last that was ever used
constinit std::atomic<std::uint32_t> waiting{0};
constinit Lock entries_lock;  // held while they are looked at or changed

constinit std::atomic<std::int64_t> asking_since{0};    // for all; 0: nobody is
constinit std::atomic<std::uint32_t> sockets_there{0};  // when all were last told of
constinit LookBudget budget;

// Holds the lock.
Entry& entry_of(const Side& side) noexcept {
  const std::uint32_t index = index_of(side);
  Entry& entry = entries[index];
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  if (entry.generation != generation)
    entry = {.generation = generation, .number = 0, .waiting = entry.waiting, .peer = {}};
  end_of_entries = std::max(end_of_entries, index + 1);
  return entry;
}

Entry look_up(const Side& side) noexcept {
  const Guard guard(entries_lock);
  return guard ? entry_of(side) : Entry{};
}

void note_peer(const Side& side, const FoundSocket& peer) noexcept {
  const Guard guard(entries_lock);
  if (!guard) return;
  Entry& entry = entry_of(side);
  entry.peer = peer;
  if (entry.waiting) waiting.fetch_sub(1, std::memory_order_relaxed);
  entry.waiting = false;
}

// Takes those who wait now.
void take_waiting(AwaitedPeers& those) noexcept {
  for (std::uint32_t i = 0; i < end_of_entries; ++i) {
    Entry& entry = entries[i];
    if (!entry.waiting) continue;
    entry.waiting = false;
    // Otherwise another side's by now.
    if (entry.number != 0) those.add(entry.number, i, entry.generation);
  }
  waiting.store(0, std::memory_order_relaxed);
}

// Asks for all, for all who wait. Who is not told asks again.
void ask_for_all() noexcept {
  Guard guard(entries_lock);
  if (!guard) return;
  const std::size_t size =
      std::bit_ceil(2 * (std::size_t{waiting.load(std::memory_order_relaxed)} + 1));
  const std::size_t bytes = size * sizeof(AwaitedPeers::Slot);
  const long memory =
      kernel(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory < 0) return;
  AwaitedPeers those(reinterpret_cast<AwaitedPeers::Slot*>(memory), size);
  take_waiting(those);
  guard.unlock();
  const bool all = for_each_unix_socket(
      [](void* to, const UnixSocket& socket) { static_cast<AwaitedPeers*>(to)->note(socket); },
      &those);
  if (all) sockets_there.store(those.noted(), std::memory_order_relaxed);
  if (guard.lock()) {
    those.for_each_found([](const AwaitedPeers::Slot& slot) {
      Entry& entry = entries[slot.index];
      if (entry.generation == slot.generation && entry.number == slot.number)
        entry.peer = slot.peer;
    });
    guard.unlock();
  }
  kernel(SYS_munmap, memory, bytes);
}

// False: nobody may ask for all now.
bool told_together() noexcept {
  const std::uint32_t count = waiting.load(std::memory_order_relaxed);
  if (count < kWorthAll) return false;
  const bool for_many = count >= sockets_there.load(std::memory_order_relaxed) / kShareOfAll;
  if (!for_many && !budget.allows()) return false;
  // Who asked may have been thrown out of it by a signal's handler.
  constexpr std::int64_t kLongAgo = 1'000'000'000;
  const std::int64_t now = monotonic_ns();
  std::int64_t since = asking_since.load(std::memory_order_relaxed);
  if ((since != 0 && now - since < kLongAgo) || !asking_since.compare_exchange_strong(since, now))
    return false;
  if (for_many)
    ask_for_all();
  else
    budget.spend(ask_for_all);
  asking_since.store(0, std::memory_order_relaxed);
  return true;
}

void before_fork() noexcept { entries_lock.lock(); }
void in_parent() noexcept { entries_lock.unlock(); }
void in_child() noexcept {
  // Another thread may have been in the middle of it; those who wait ask again.
  asking_since.store(0, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < end_of_entries; ++i)
    if (entries[i].waiting) entries[i].waiting = false;
  waiting.store(0, std::memory_order_relaxed);
  entries_lock.unlock();
}

[[gnu::constructor]] void start() noexcept { at_fork({before_fork, in_parent, in_child}); }

}  // namespace

std::uint32_t await_unix_peer(int fd, const Side& side) noexcept {
  const Entry known = look_up(side);
  if (known.number != 0 && (known.waiting || known.peer.inode != 0)) return known.number;
  const std::uint32_t number = known.number != 0 ? known.number : number_of_socket(fd);
  const Guard guard(entries_lock);
  if (number == 0 || !guard) return number;
  Entry& entry = entry_of(side);
  entry.number = number;
  if (!entry.waiting) waiting.fetch_add(1, std::memory_order_relaxed);
  entry.waiting = true;
  return number;
}

int number_of_unix_peer(int fd, const Side& side, std::uint32_t& number) noexcept {
  const std::uint32_t own = await_unix_peer(fd, side);
  if (own == 0) return -ENOTSOCK;
  Entry known = look_up(side);
  if (known.peer.inode == 0 && told_together()) known = look_up(side);
  number = known.peer.inode;
  if (number != 0) return 0;
  if (waiting.load(std::memory_order_relaxed) >= kWorthAll || !budget.allows()) return -EAGAIN;
  int result = 0;
  budget.spend([&] { result = find_unix_peer_number(own, number); });
  if (result == 0) note_peer(side, {.cookie = 0, .inode = number, .uid = 0, .queued = 0});
  return result;
}

int find_unix_peer_of(int fd, const Side& side, FoundSocket& found) noexcept {
  std::uint32_t number = 0;
  if (const int result = number_of_unix_peer(fd, side, number); result != 0) return result;
  const Entry known = look_up(side);
  found = known.peer;
  if (found.cookie != 0) return 0;
  int result = 0;
  budget.spend([&] { result = find_unix_peer(known.number, number, found); });
  if (result == 0) note_peer(side, found);
  return result;
}

long queued_at_unix_peer(int fd, const Side& side) noexcept {
  FoundSocket found{};
  if (const int result = find_unix_peer_of(fd, side, found); result != 0) return result;
  int result = 0;
  budget.spend([&] { result = find_unix_peer(look_up(side).number, found.inode, found); });
  return result == 0 ? static_cast<long>(found.queued) : result;
}

}  // namespace farcall::preload
