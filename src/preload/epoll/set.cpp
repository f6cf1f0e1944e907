// SPDX-License-Identifier: Apache-2.0
#include "preload/epoll/set.hpp"

#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "preload/fork.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint16_t kMostSets = 1024;
constexpr std::uint16_t kSeveral = UINT16_MAX;
constexpr std::uint32_t kLeastCapacity = 128;  // some 4 KiB

using Numbers = std::array<std::atomic<std::uint16_t>, kMostDescriptors>;
using Marks = std::array<std::atomic<std::uint32_t>, kMostSets>;

// Mapped with the first set; `used` of them have been in use.
constinit std::atomic<Set*> sets{nullptr};
constinit std::atomic<std::uint16_t> used{0};
// Of a descriptor: the set that it is, and the set that it is in, each plus one.
constinit Numbers set_of{};
constinit Numbers member_of{};
constinit std::atomic<int> highest{0};
constinit std::uint32_t generations = 0;
// Of the sets that this process makes, shared with its children.
constinit Marks* marks = nullptr;
// Held while sets come and go, and while their memory moves: a child must find it whole.
constinit Lock sets_lock;

bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostDescriptors);
}
std::atomic<std::uint16_t>& at(Numbers& table, int fd) noexcept {
  return table[static_cast<std::size_t>(fd)];
}
Set* set_at(std::uint16_t plus_one) noexcept {
  if (plus_one == 0 || plus_one == kSeveral) return nullptr;
  return &sets.load(std::memory_order_relaxed)[plus_one - 1U];
}
std::uint16_t plus_one(const Set& set) noexcept {
  return static_cast<std::uint16_t>(&set - sets.load(std::memory_order_relaxed) + 1);
}

void note_highest(int fd) noexcept {
  int before = highest.load(std::memory_order_relaxed);
  while (before < fd && !highest.compare_exchange_weak(before, fd, std::memory_order_relaxed)) {
  }
}

std::size_t bytes_for(std::uint32_t capacity) noexcept { return capacity * sizeof(Registration); }

std::atomic<std::uint32_t>* mark_of(std::size_t index) noexcept {
  if (marks == nullptr) {
    const long memory = kernel(SYS_mmap, nullptr, sizeof(Marks), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory < 0) return nullptr;
    marks = reinterpret_cast<Marks*>(memory);
  }
  return &(*marks)[index];
}

void refer(int fd, Set& set) noexcept {
  ++set.descriptors;
  note_highest(fd);
  // release: pairs with the acquire in find_set()
  at(set_of, fd).store(plus_one(set), std::memory_order_release);
}

// One that is not in use; the lock of all sets is held.
Set* free_set() noexcept {
  Set* all = sets.load(std::memory_order_relaxed);
  if (all == nullptr) {
    const long memory = kernel(SYS_mmap, nullptr, kMostSets * sizeof(Set), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory < 0 && memory > -4096) return nullptr;
    all = reinterpret_cast<Set*>(memory);
    sets.store(all, std::memory_order_release);
  }
  const std::uint16_t count = used.load(std::memory_order_relaxed);
  Set* const free = std::find_if(all, all + count, [](Set& set) { return set.descriptors == 0; });
  if (free != all + count) return free;
  if (count == kMostSets) return nullptr;
  used.store(count + 1, std::memory_order_release);
  return new (free) Set;
}

void before_fork() noexcept { sets_lock.lock(); }
void in_parent() noexcept { sets_lock.unlock(); }
void in_child() noexcept {
  sets_lock.unlock();
  inherit_sets();
}

[[gnu::constructor]] void start() noexcept { at_fork({before_fork, in_parent, in_child}); }

}  // namespace

void inherit_sets() noexcept {
  for (std::uint16_t i = 0; i < used.load(std::memory_order_relaxed); ++i) {
    Set& set = sets.load(std::memory_order_relaxed)[i];
    // Who found a set that has gone since may hold it for another moment.
    set.lock.renew();
    if (set.descriptors == 0) continue;
    set.waiters.store(Waiters::inherited, std::memory_order_relaxed);
    set.hot_count.store(0, std::memory_order_relaxed);
    set.sleepers.store(0, std::memory_order_relaxed);  // what was kicked is the child's, too
  }
  marks = nullptr;  // those of the parent are known to the sets
  sets_lock.renew();
}

namespace detail {

Set* set_number(std::uint16_t index) noexcept {
  return index < used.load(std::memory_order_acquire) ? &sets.load(std::memory_order_relaxed)[index]
                                                      : nullptr;
}

Set* take_membership(int fd, bool& several) noexcept {
  const std::uint16_t member = at(member_of, fd).exchange(0);
  several = member == kSeveral;
  return set_at(member);
}

}  // namespace detail

Set* find_set(int fd) noexcept {
  if (!in_range(fd)) return nullptr;
  return set_at(at(set_of, fd).load(std::memory_order_acquire));
}

int descriptor_of(const Set& set) noexcept {
  const int last = highest.load(std::memory_order_relaxed);
  for (int fd = 0; fd <= last; ++fd)
    if (find_set(fd) == &set) return fd;
  return -1;
}

Set* make_set(int fd, bool made_here) noexcept {
  if (!in_range(fd)) return nullptr;
  const Guard all(sets_lock);
  if (!all) return nullptr;
  if (Set* const known = find_set(fd)) return known;
  Set* const free = free_set();
  if (free == nullptr) return nullptr;
  Set& set = *free;
  const Guard guard(set.lock);
  set.generation = ++generations != 0 ? generations : ++generations;
  set.known_here = made_here ? mark_of(plus_one(set) - 1U) : nullptr;
  if (set.known_here != nullptr) set.known_here->store(set.generation, std::memory_order_relaxed);
  set.waiters.store(set.known_here != nullptr ? Waiters::unknown : Waiters::kernel,
                    std::memory_order_relaxed);
  set.sleepers.store(0, std::memory_order_relaxed);
  set.told_at.store(0, std::memory_order_relaxed);
  set.kernel_next = false;
  set.patience = Patience{};
  refer(fd, set);
  return &set;
}

void set_duplicated(int fd, int copy) noexcept {
  if (!in_range(copy) || !is_set(fd)) return;
  const Guard all(sets_lock);
  Set* const set = find_set(fd);
  if (all && set != nullptr) refer(copy, *set);
}

void forget_set(int fd) noexcept {
  const Guard all(sets_lock);
  if (!all) return;
  Set* const set = set_at(at(set_of, fd).exchange(0));
  if (set == nullptr || --set->descriptors != 0) return;
  const Guard guard(set->lock);
  const std::uint32_t capacity = set->capacity.exchange(0, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < capacity; ++i) {
    std::uint16_t own = plus_one(*set);
    if (set->by_fd[i].present) at(member_of, static_cast<int>(i)).compare_exchange_strong(own, 0);
  }
  if (set->by_fd != nullptr) kernel(SYS_munmap, set->by_fd, bytes_for(capacity));
  set->by_fd = nullptr;
  set->generation = 0;
  set->waiters.store(Waiters::kernel, std::memory_order_relaxed);
  set->hot_count.store(0, std::memory_order_relaxed);
  set->kicked_count.store(0, std::memory_order_relaxed);
  set->has_waker = false;
  set->wait_for_room.store(0, std::memory_order_relaxed);
}

Set* set_with(int fd, bool& several) noexcept {
  several = false;
  if (!in_range(fd)) return nullptr;
  const std::uint16_t member = at(member_of, fd).load(std::memory_order_acquire);
  several = member == kSeveral;
  return set_at(member);
}

void join_set(Set& set, int fd) noexcept {
  note_highest(fd);
  std::uint16_t none = 0;
  auto& member = at(member_of, fd);
  if (!member.compare_exchange_strong(none, plus_one(set)) && none != plus_one(set))
    member.store(kSeveral);
}

void leave_set(Set& set, int fd) noexcept {
  if (!in_range(fd)) return;
  std::uint16_t own = plus_one(set);
  at(member_of, fd).compare_exchange_strong(own, 0);
}

bool is_set(int fd) noexcept {
  return in_range(fd) && at(set_of, fd).load(std::memory_order_relaxed) != 0;
}
bool is_in_set(int fd) noexcept {
  return in_range(fd) && at(member_of, fd).load(std::memory_order_relaxed) != 0;
}
int highest_in_sets() noexcept { return highest.load(std::memory_order_relaxed); }

bool make_room(Set& set, int fd) noexcept {
  if (!in_range(fd)) return false;
  const auto index = static_cast<std::uint32_t>(fd);
  if (index < set.capacity.load(std::memory_order_relaxed)) return true;
  const Guard all(sets_lock);
  const Guard guard(set.lock);
  const std::uint32_t capacity = set.capacity.load(std::memory_order_relaxed);
  if (!all || !guard || set.descriptors == 0) return false;
  std::uint32_t wanted = std::max(capacity, kLeastCapacity);
  while (wanted <= index) wanted *= 2;
  const long memory =
      set.by_fd == nullptr
          ? kernel(SYS_mmap, nullptr, bytes_for(wanted), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
          : kernel(SYS_mremap, set.by_fd, bytes_for(capacity), bytes_for(wanted), MREMAP_MAYMOVE);
  if (memory < 0 && memory > -4096) return false;
  set.by_fd = reinterpret_cast<Registration*>(memory);
  set.capacity.store(wanted, std::memory_order_relaxed);
  return true;
}

void tell_maker(const Set& set) noexcept {
  if (set.known_here == nullptr) return;
  std::uint32_t only_there = set.generation;
  // release: pairs with the acquire in known_elsewhere()
  set.known_here->compare_exchange_strong(only_there, 0, std::memory_order_acq_rel);
}

void count_wait_for_room(Set& set, int fd) noexcept {
  Registration& entry = set.by_fd[fd];
  const std::uint32_t events = entry.event.events;
  const bool waits =
      entry.present && (events & (EPOLLOUT | EPOLLWRNORM)) != 0 && (events & EPOLLET) == 0;
  if (std::exchange(entry.waits_for_room, waits) == waits) return;
  const std::uint32_t count = set.wait_for_room.load(std::memory_order_relaxed);
  set.wait_for_room.store(waits ? count + 1 : count - 1, std::memory_order_relaxed);
}

void make_hot(Set& set, int fd) noexcept {
  Registration& entry = set.by_fd[fd];
  if (entry.hot) return;
  const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
  hot_at(set, count) = fd;
  set.hot_count.store(count + 1, std::memory_order_relaxed);
  entry.hot = true;
  entry.idle = 0;
}

void make_cold(Set& set, int fd) noexcept {
  if (!set.by_fd[fd].hot) return;
  set.by_fd[fd].hot = false;
  const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (hot_at(set, i) != fd) continue;
    hot_at(set, i) = hot_at(set, count - 1);
    set.hot_count.store(count - 1, std::memory_order_relaxed);
    return;
  }
}

std::uint32_t take_hot(Set& set, int* taken, std::uint32_t most) noexcept {
  const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
  const std::uint32_t number = std::min(count, most);
  for (std::uint32_t i = 0; i < number; ++i) {
    taken[i] = hot_at(set, i);
    set.by_fd[taken[i]].hot = false;
  }
  for (std::uint32_t i = number; i < count; ++i) hot_at(set, i - number) = hot_at(set, i);
  set.hot_count.store(count - number, std::memory_order_relaxed);
  return number;
}

}  // namespace farcall::preload
