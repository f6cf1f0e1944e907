// SPDX-License-Identifier: Apache-2.0
#include "preload/side.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>
#include <new>

#include "preload/close_apart.hpp"
#include "preload/fork.hpp"
#include "preload/free_list.hpp"
#include "preload/handback.hpp"
#include "preload/holders.hpp"
#include "preload/listeners.hpp"
#include "preload/log.hpp"
#include "preload/observed.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/transfer.hpp"
#include "preload/udp/udp.hpp"
#include "preload/vacant.hpp"

namespace farcall::preload {

namespace detail {
constinit std::array<std::atomic<Side*>, kMostDescriptors> table{};
constinit std::array<std::atomic<std::uint64_t>, kMostDescriptors / 64> private_descriptors{};
}  // namespace detail

namespace {

// Shared with children, not with anybody else. The sides come last: their own parts stand behind.
constexpr std::size_t kPages = 65536;  // of the largest there are
struct Slab {
  FreeList<kMostSides> free;
  std::atomic<std::uint32_t> made;
  alignas(kPages) Side sides[kMostSides];  // what stands behind them is on pages of its own
};

constinit std::atomic<Slab*> slab{nullptr};
constinit std::array<std::atomic<std::uint16_t>, kMostSides> references{};
constinit std::atomic<int> highest{0};
constinit std::atomic<int> highest_private{0};
constinit std::atomic<pid_t> pid{0};
constinit Lock life;
constinit std::atomic<bool> left{false};                   // see leave_process()
constinit std::atomic<bool> shared{false};                 // with a parent, or a child
constinit std::atomic<std::uint64_t> descriptor_limit{0};  // when it was last asked for

// Connections of this process that are accelerated.
constinit std::atomic<std::uint32_t> accelerated{0};

void note_highest(std::atomic<int>& mark, int fd) noexcept {
  int before = mark.load(std::memory_order_relaxed);
  while (before < fd && !mark.compare_exchange_weak(before, fd, std::memory_order_relaxed)) {
  }
}

Slab* get_slab() noexcept {
  Slab* found = slab.load(std::memory_order_acquire);
  if (found != nullptr) [[likely]]
    return found;
  // The same range once more behind it, not shared: Side::own().
  constexpr std::size_t kOwn = sizeof(Side) * kMostSides;
  const long made = kernel(SYS_mmap, nullptr, sizeof(Slab) + kOwn, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made < 0) return nullptr;
  auto* mine = reinterpret_cast<Slab*>(made);
  if (kernel(SYS_mmap, mine, sizeof(Slab), PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) < 0) {
    kernel(SYS_munmap, mine, sizeof(Slab) + kOwn);
    return nullptr;
  }
  if (slab.compare_exchange_strong(found, mine)) return mine;
  kernel(SYS_munmap, mine, sizeof(Slab) + kOwn);
  return found;
}

// Holds `life`.
void retire(Side& side) noexcept {
  if (side.own().mapping == nullptr) return;
  unmap_connection(side.own().mapping, side.own().mapped);
  side.own().mapping = nullptr;
}

// Whoever is in the middle of a call sees it when it comes back. What stands in the side itself may
// be in use by other processes, which may hold its locks for long.
void clear_rings(Side& side) noexcept {
  const Guard receiving(side.receive_lock);
  const Guard sending(side.send_lock);
  side.own().in = {};
  side.own().out = {};
}

Side* take_vacant(Slab& all) noexcept {
  const std::uint32_t index = all.free.take();
  return index == kMostSides ? nullptr : &all.sides[index];
}

// Sides of forked children that have ended, or executed a program, without closing them.
void vacate_the_left(Slab& all) noexcept {
  constexpr std::int64_t kLongAgo = 1'000'000'000;
  const Guard guard(life);
  count_out_the_dead();
  const std::int64_t now = monotonic_ns();
  for (std::uint32_t i = 0; i < kMostSides; ++i) {
    Side& side = all.sides[i];
    std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
    if ((generation & 1) == 0 || references[i].load(std::memory_order_relaxed) != 0 ||
        side.processes.load(std::memory_order_acquire) > 0 ||
        now - side.left_at.load(std::memory_order_relaxed) < kLongAgo)
      continue;
    if (side.generation.compare_exchange_strong(generation, generation + 1)) all.free.put(i);
  }
}

void forget_before_fork_in_child() noexcept {
  known_thread = 0;
  pid.store(static_cast<pid_t>(kernel(SYS_getpid)), std::memory_order_relaxed);
}

template <class Change>
void for_each_own(Change change) noexcept {
  Slab* all = slab.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const std::uint32_t made = std::min(all->made.load(std::memory_order_relaxed), kMostSides);
  for (std::uint32_t i = 0; i < made; ++i)
    if (references[i].load(std::memory_order_relaxed) != 0) change(all->sides[i]);
}

void before_fork() noexcept {
  life.lock();
  shared.store(true, std::memory_order_relaxed);
  expect_child();
  // Where this process has left already, the child alone is a holder.
  const bool holds = !left.load(std::memory_order_relaxed);
  for_each_own([holds](Side& side) {
    side.processes.fetch_add(1, std::memory_order_relaxed);
    note_held_by_child(index_of(side));
    if (holds) note_held(index_of(side));
  });
}

void in_parent() noexcept { life.unlock(); }

void in_child() noexcept {
  left.store(false, std::memory_order_relaxed);
  const pid_t parent = pid.load(std::memory_order_relaxed);
  forget_before_fork_in_child();
  take_childs_place(parent);
  const auto last = static_cast<std::size_t>(highest_private.load(std::memory_order_relaxed)) / 64;
  for (std::size_t word = 0; word <= last; ++word) {
    std::uint64_t bits = detail::private_descriptors[word].exchange(0, std::memory_order_relaxed);
    for (; bits != 0; bits &= bits - 1)
      kernel(SYS_close, static_cast<int>(word * 64) + __builtin_ctzll(bits));
  }
  forget_listeners();
  life.unlock();
}

// A socket that is closed so is reset, as the kernel does for bytes in its own queue that nobody
// has read.
constexpr linger kResets{.l_onoff = 1, .l_linger = 0};
void set_linger(int fd, linger time) noexcept {
  kernel(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &time, sizeof time);
}

void reset_at_end(Side& side, int fd) noexcept {
  socklen_t size = sizeof(linger);
  if (side.kind != Kind::tcp ||
      kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_LINGER, &side.own().linger_before, &size) != 0)
    return;
  side.own().resets_at_end = true;
  set_linger(fd, kResets);
}

[[gnu::constructor]] void start() noexcept {
  pid.store(static_cast<pid_t>(kernel(SYS_getpid)), std::memory_order_relaxed);
  at_fork({before_fork, in_parent, in_child});
  // Behind the destructors of all libraries, which may still read: those of one are run before what
  // was asked for earlier, but what is asked for by atexit() is run with this library's own.
  ::on_exit([](int, void*) noexcept { leave_process(Leaving::ends); }, nullptr);
}

}  // namespace

Lock& life_lock() noexcept { return life; }

std::uint32_t index_of(const Side& side) noexcept {
  return static_cast<std::uint32_t>(&side - slab.load(std::memory_order_relaxed)->sides);
}

Side* side_at(std::uint32_t index) noexcept {
  Slab* const all = slab.load(std::memory_order_acquire);
  return all != nullptr && index < kMostSides ? &all->sides[index] : nullptr;
}

pid_t own_pid() noexcept {
  pid_t known = pid.load(std::memory_order_relaxed);
  if (known == 0) {
    known = static_cast<pid_t>(kernel(SYS_getpid));
    pid.store(known, std::memory_order_relaxed);
  }
  return known;
}

bool in_own_process() noexcept { return kernel(SYS_getpid) == own_pid(); }

Side* make_side(Kind kind, bool connector) noexcept {
  Slab* all = get_slab();
  if (all == nullptr) return nullptr;
  Side* side = take_vacant(*all);
  if (side == nullptr) {
    const std::uint32_t index = all->made.fetch_add(1, std::memory_order_relaxed);
    if (index < kMostSides) {
      side = &all->sides[index];
    } else {
      all->made.store(kMostSides, std::memory_order_relaxed);
      vacate_the_left(*all);
      side = take_vacant(*all);
      if (side == nullptr) return nullptr;
    }
  }
  // Others of less trust may have written to the list.
  if (references[index_of(*side)].load(std::memory_order_relaxed) != 0) return nullptr;
  const std::uint32_t generation = side->generation.load(std::memory_order_relaxed) | 1;
  new (side) Side{};
  side->own() = {};
  side->kind = kind;
  side->connector = connector;
  side->listener = -1;
  side->guest = -1;
  side->processes.store(1, std::memory_order_relaxed);
  side->generation.store(generation, std::memory_order_relaxed);
  const Guard guard(life);
  note_held(index_of(*side));
  return side;
}

void adopt(int fd, Side& side) noexcept {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMostDescriptors)) return;
  const Guard guard(life);
  references[index_of(side)].fetch_add(1, std::memory_order_relaxed);
  note_highest(highest, fd);
  // release: pairs with the acquire in find_side()
  detail::table[static_cast<std::size_t>(fd)].store(&side, std::memory_order_release);
}

bool leave_process(Leaving how) noexcept {
  if (left.load(std::memory_order_relaxed) || !in_own_process() || left.exchange(true))
    return false;
  settle_everything();
  if (how != Leaving::goes_on) udp_process_leaves();
  // The kernel would take a doorbell for bytes that nobody has read, and reset the connection, if
  // nobody else holds it.
  const std::int64_t until = monotonic_ns() + 2'000'000'000;  // with peers that are stopped
  for (int fd = 0; fd <= highest_descriptor(); ++fd) {
    Side* const side = find_side(fd);
    if (side == nullptr || !side->accelerated() || side->other_holders_unknown ||
        side->processes != 1)
      continue;
    {
      // Nobody could put what the receiver may have to give back in front of the end.
      const bool sending = monotonic_ns() < until && side->send_lock.try_lock();
      if (sending && side->out().control != nullptr && side->sender.unread(side->out()) != 0)
        send_last_bytes(*side, fd);
      if (sending) side->send_lock.unlock();
    }
    if (!side->receive_lock.try_lock()) continue;
    if (!side->receiver.busy()) take_doorbell(*side, fd);
    if (how != Leaving::goes_on && side->in().control != nullptr &&
        !side->receiver.emptied(side->in()))
      reset_at_end(*side, fd);
    side->receive_lock.unlock();
  }
  const std::int64_t now = monotonic_ns();
  const Guard guard(life);
  note_all_dropped();
  for_each_own([now](Side& side) {
    side.left_at.store(now, std::memory_order_relaxed);
    if (!side.other_holders_unknown) side.processes.fetch_sub(1, std::memory_order_acq_rel);
  });
  return true;
}

void stay_in_process() noexcept {
  if (!left.load(std::memory_order_relaxed)) return;
  const Guard guard(life);
  if (!left.exchange(false)) return;
  for (int fd = 0; fd <= highest_descriptor(); ++fd)
    if (Side* const side = find_side(fd); side != nullptr && side->own().resets_at_end) {
      side->own().resets_at_end = false;
      set_linger(fd, side->own().linger_before);
    }
  for_each_own([](Side& side) {
    if (side.other_holders_unknown) return;
    side.processes.fetch_add(1, std::memory_order_acq_rel);
    note_held(index_of(side));
  });
}

void stop_listening(Side& side) noexcept {
  if (side.listener_owner != own_pid()) return;  // a parent, which may still wait there
  if (side.listener >= 0) {
    close_listener(side.listener);
    leave_listeners(side);
  }
  if (side.guest >= 0) close_visitor(side.guest);
  side.listener = -1;
  side.guest = -1;
}

Released forget(int fd) noexcept {
  if (find_side(fd) == nullptr) return {};
  Side* side = nullptr;
  {
    const Guard guard(life);
    side = detail::table[static_cast<std::size_t>(fd)].exchange(nullptr);
    if (side == nullptr) return {};
    if (references[index_of(*side)].fetch_sub(1, std::memory_order_relaxed) != 1) return {};
    if (side->accelerated()) uncount_accelerated();
    stop_listening(*side);
    // A process that is about to end has been counted out already.
    if (left.load(std::memory_order_relaxed))
      return {.side = side->processes.load(std::memory_order_acquire) <= 0 ? side : nullptr};
    note_dropped(index_of(*side));
    std::int32_t alone = 1;
    if (side->processes.compare_exchange_strong(alone, 0, std::memory_order_acq_rel))
      return {.side = side};
  }
  // Others go on with it; this process needs its mapping no more.
  clear_rings(*side);
  const Guard guard(life);
  stop_observing(*side);
  retire(*side);
  const bool last = side->processes.fetch_sub(1, std::memory_order_acq_rel) == 1;
  return {.side = last ? side : nullptr};
}

void forget_inherited() noexcept {
  const Guard guard(life);
  const std::int64_t now = monotonic_ns();
  for (int fd = 0; fd <= highest_descriptor(); ++fd) {
    Side* const side = detail::table[static_cast<std::size_t>(fd)].exchange(nullptr);
    if (side == nullptr || references[index_of(*side)].fetch_sub(1, std::memory_order_relaxed) != 1)
      continue;
    if (side->accelerated()) uncount_accelerated();
    side->own().in = {};
    side->own().out = {};
    stop_observing(*side);
    retire(*side);
    side->left_at.store(now, std::memory_order_relaxed);
    note_dropped(index_of(*side));
    side->processes.fetch_sub(1, std::memory_order_acq_rel);
  }
}

bool shares_sides() noexcept { return shared.load(std::memory_order_relaxed); }

void separate_sides() noexcept {
  const Guard guard(life);
  bool any = false;
  for_each_own([&any](Side&) { any = true; });
  if (any) return;
  Slab* const all = slab.load(std::memory_order_relaxed);
  if (all != nullptr && kernel(SYS_mmap, all, sizeof(Slab), PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) < 0)
    return;
  leave_holders();
  shared.store(false, std::memory_order_relaxed);
}

void say_closed(Released released, int fd) noexcept {
  if (released.side == nullptr || released.side->other_holders_unknown) return;
  Side& side = *released.side;
  bool unread = false;
  {
    const Guard receiving(side.receive_lock);
    if (side.in().control != nullptr) {
      // The peer sends through the kernel from here on, which tells it that nobody reads.
      side.receiver.watch_for_ever(side.in());
      (void)side.receiver.next(side.in());
      if (!side.receiver.busy()) take_doorbell(side, fd);
      unread = !side.receiver.emptied(side.in());
    }
  }
  {
    const Guard sending(side.send_lock);
    if (side.out().control != nullptr) {
      send_last_bytes(side, fd);
      side.out().control->sender_said.fetch_or(Direction::kClosed, std::memory_order_seq_cst);
    }
  }
  // A peer that left meanwhile may have rung.
  if (!unread) {
    const Guard receiving(side.receive_lock);
    if (!side.receiver.busy()) take_last_doorbell(side, fd);
  }
  if (unread) set_linger(fd, kResets);
}

void release(Released released, Ending ending) noexcept {
  Side* side = released.side;
  if (side == nullptr) return;
  forget_put(*side);
  const Guard guard(life);
  {
    // Whoever is in the middle of a call sees that it is another side when it comes back.
    const Guard receiving(side->receive_lock);
    const Guard sending(side->send_lock);
    side->generation.fetch_add(1, std::memory_order_release);
    side->stage.store(Side::kNever, std::memory_order_relaxed);
  }
  clear_rings(*side);
  if (ending == Ending::closed) observe_closed(*side);
  stop_observing(*side);
  retire(*side);
  slab.load(std::memory_order_relaxed)->free.put(index_of(*side));
}

unsigned local_references(const Side& side) noexcept {
  return references[index_of(side)].load(std::memory_order_relaxed);
}

int highest_descriptor() noexcept { return highest.load(std::memory_order_relaxed); }

bool count_accelerated() noexcept {
  if (accelerated.fetch_add(1, std::memory_order_relaxed) < settings().max_sockets) return true;
  uncount_accelerated();
  return false;
}

void uncount_accelerated() noexcept { accelerated.fetch_sub(1, std::memory_order_relaxed); }

std::uint64_t ask_descriptor_limit() noexcept {
  rlimit found{};
  if (kernel(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &found) != 0) found.rlim_cur = 1024;
  descriptor_limit.store(found.rlim_cur, std::memory_order_relaxed);
  return found.rlim_cur;
}

int make_private(int fd) noexcept {
  if (fd < 0) return fd;
  const auto first = [](std::uint64_t limit) noexcept {
    return limit < 1024 ? static_cast<int>(limit - limit / 8) : 900;
  };
  const std::uint64_t known = descriptor_limit.load(std::memory_order_relaxed);
  long high =
      kernel(SYS_fcntl, fd, F_DUPFD_CLOEXEC, first(known != 0 ? known : ask_descriptor_limit()));
  // The limit may be another one by now.
  if (high < 0) high = kernel(SYS_fcntl, fd, F_DUPFD_CLOEXEC, first(ask_descriptor_limit()));
  if (high >= 0) {
    kernel(SYS_close, fd);
    fd = static_cast<int>(high);
  }
  if (fd < kMostDescriptors) {
    detail::private_descriptors[static_cast<std::size_t>(fd) / 64].fetch_or(
        std::uint64_t{1} << fd % 64, std::memory_order_relaxed);
    note_highest(highest_private, fd);
  }
  return fd;
}

bool is_private(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostDescriptors) &&
         (detail::private_descriptors[static_cast<std::size_t>(fd) / 64].load(
              std::memory_order_relaxed) >>
              (fd % 64) &
          1) != 0;
}

int highest_private_descriptor() noexcept {
  return highest_private.load(std::memory_order_relaxed);
}

void forget_private(int fd) noexcept {
  if (is_private(fd))
    detail::private_descriptors[static_cast<std::size_t>(fd) / 64].fetch_and(
        ~(std::uint64_t{1} << fd % 64), std::memory_order_relaxed);
}

void close_private(int fd) noexcept {
  if (!is_private(fd)) return;  // somebody has closed it, the number may be another's by now
  forget_private(fd);
  kernel(SYS_close, fd);
}

void note_reason(Side& side, Reason reason) noexcept {
  observe::set_carrier(side.own().observed, observe::Carrier::kernel, observed_reason(reason));
  if (side.own().counters != nullptr)
    side.own().counters->reasons[static_cast<std::size_t>(reason)].fetch_add(
        1, std::memory_order_relaxed);
}

}  // namespace farcall::preload
