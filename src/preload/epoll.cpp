// SPDX-License-Identifier: Apache-2.0
#include "preload/epoll.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>

#include <array>
#include <cstring>
#include <utility>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/fork.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/udp.hpp"

namespace farcall::preload {
namespace {

#ifdef SYS_epoll_create
constinit real::Direct<"epoll_create", int(int), int> next_epoll_create{SYS_epoll_create};
#endif
constinit real::Direct<"epoll_create1", int(int), int> next_epoll_create1{SYS_epoll_create1};
constinit real::Direct<"epoll_ctl", int(int, int, int, epoll_event*), int, int, int, epoll_event*>
    next_epoll_ctl{SYS_epoll_ctl};

constexpr std::uint16_t kMostSets = 1024;
constexpr std::uint16_t kSeveral = UINT16_MAX;
constexpr std::size_t kMostHot = 256;
constexpr std::uint16_t kIdleLooks = 256;
constexpr std::uint64_t kLookEvery = 20 * kTicksPerMicrosecond;
constexpr std::uint64_t kNever = kNoDatagram;

struct Registration {
  epoll_event event;
  std::uint64_t reported;  // what ring_position() was when it was last told of; for edges
  std::uint16_t idle;
  bool present;
  bool hot;
};

struct Set {
  Lock lock;
  int fd = -1;
  std::atomic<std::uint32_t> waiters{0};  // threads that sleep in the kernel
  std::atomic<std::uint32_t> hot_count{0};
  int kicked = -1;           // its registration in the kernel has too much in it, see kick()
  bool kernel_only = false;  // nested in something, or shared with another process
  std::uint32_t calls = 0;
  std::uint32_t turn = 0;
  std::uint64_t looked_at = 0;
  std::atomic<std::uint64_t> told_at{0};  // ticks, when the kernel last told of something
  Patience patience;
  std::array<int, kMostHot> hot;
  Registration* by_fd = nullptr;  // kMostDescriptors of them, most without memory
};
constexpr std::size_t kRegistrationBytes = sizeof(Registration) * kMostDescriptors;

constinit std::array<std::atomic<Set*>, kMostSets> sets{};
// Of a descriptor: the set that it is, and the set that it is in, each plus one.
constinit std::array<std::atomic<std::uint16_t>, kMostDescriptors> set_of{};
constinit std::array<std::atomic<std::uint16_t>, kMostDescriptors> member_of{};
constinit std::atomic<int> highest_member{0};
constinit Lock sets_lock;

bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostDescriptors);
}
std::atomic<std::uint16_t>& at(std::array<std::atomic<std::uint16_t>, kMostDescriptors>& table,
                               int fd) noexcept {
  return table[static_cast<std::size_t>(fd)];
}

Set* set_at(std::uint16_t plus_one) noexcept {
  if (plus_one == 0 || plus_one == kSeveral) return nullptr;
  return sets[plus_one - 1U].load(std::memory_order_acquire);
}

Set* find_set(int fd) noexcept {
  if (!in_range(fd)) return nullptr;
  return set_at(at(set_of, fd).load(std::memory_order_acquire));
}

void note_highest(int fd) noexcept {
  int before = highest_member.load(std::memory_order_relaxed);
  while (before < fd &&
         !highest_member.compare_exchange_weak(before, fd, std::memory_order_relaxed)) {
  }
}

Set* make_set(int fd) noexcept {
  if (!in_range(fd)) return nullptr;
  const Guard guard(sets_lock);
  if (Set* known = find_set(fd)) return known;
  for (std::uint16_t i = 0; i < kMostSets; ++i) {
    Set* set = sets[i].load(std::memory_order_relaxed);
    if (set != nullptr && set->fd >= 0) continue;
    if (set == nullptr) {
      const long memory = kernel(SYS_mmap, nullptr, sizeof(Set), PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory < 0) return nullptr;
      set = new (reinterpret_cast<void*>(memory)) Set;
    }
    if (set->by_fd == nullptr) {
      const long memory = kernel(SYS_mmap, nullptr, kRegistrationBytes, PROT_READ | PROT_WRITE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory < 0) return nullptr;
      set->by_fd = reinterpret_cast<Registration*>(memory);
    }
    set->fd = fd;
    set->kernel_only = false;
    set->waiters.store(0, std::memory_order_relaxed);
    sets[i].store(set, std::memory_order_release);
    at(set_of, fd).store(static_cast<std::uint16_t>(i + 1), std::memory_order_release);
    note_highest(fd);
    return set;
  }
  return nullptr;
}

Registration& registration(Set& set, int fd) noexcept {
  return set.by_fd[static_cast<std::size_t>(fd)];
}

// The next four hold the set's lock.
bool make_hot(Set& set, int fd) noexcept {
  Registration& entry = registration(set, fd);
  if (entry.hot) return true;
  const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
  if (count == kMostHot) return false;
  set.hot[count] = fd;
  set.hot_count.store(count + 1, std::memory_order_relaxed);
  entry.hot = true;
  entry.idle = 0;
  return true;
}

void remove_hot_at(Set& set, std::uint32_t index) noexcept {
  const std::uint32_t last = set.hot_count.load(std::memory_order_relaxed) - 1;
  registration(set, set.hot[index]).hot = false;
  set.hot[index] = set.hot[last];
  set.hot_count.store(last, std::memory_order_relaxed);
}

void remove_hot(Set& set, int fd) noexcept {
  if (!registration(set, fd).hot) return;
  for (std::uint32_t i = 0; i < set.hot_count.load(std::memory_order_relaxed); ++i)
    if (set.hot[i] == fd) return remove_hot_at(set, i);
}

std::uint32_t take_hot(Set& set, std::array<int, kMostHot>& taken) noexcept {
  const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    taken[i] = set.hot[i];
    registration(set, taken[i]).hot = false;
  }
  set.hot_count.store(0, std::memory_order_relaxed);
  return count;
}

// From here on the kernel tells of it. True if the ring holds bytes that it does not know of.
bool watch(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr && udp_watch(*udp, fd);
  }
  const Guard guard(side->receive_lock);
  if (!guard || side->in.control == nullptr) return false;
  if (!side->receiver.watched()) side->receiver.watch(side->in);
  return side->receiver.next(side->in).kind == Receiver::Next::ring;
}

// How far the connection has come, if there are bytes in the ring; a look without the lock, at
// whatever the side is now. Bytes of the kernel count when they are taken: they may have come after
// a program counted what there is and stopped reading at that number, and once they are gone the
// kernel tells of them no more.
std::uint64_t ring_position(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr ? udp_position(*udp) : kNever;
  }
  Direction* const control = side->in.control;
  if (control == nullptr) return kNever;
  const std::uint64_t tail = control->tail.load(std::memory_order_acquire) & ~kFlags;
  return tail == side->receiver.position() ? kNever : tail + side->receiver.kernel_taken();
}

// Who waits for it runs on `here`.
void note_processor(int fd, std::uint32_t here) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    if (UdpSocket* const udp = find_udp(fd)) udp_note_processor(*udp, here);
    return;
  }
  Direction* const in = side->in.control;
  Direction* const out = side->out.control;
  if (in != nullptr && in->receiver_processor.load(std::memory_order_relaxed) != here)
    in->receiver_processor.store(here, std::memory_order_relaxed);
  if (out != nullptr && out->sender_processor.load(std::memory_order_relaxed) != here)
    out->sender_processor.store(here, std::memory_order_relaxed);
}

// Where the peer last ran, plus one; 0 if that is not known.
std::uint32_t peer_processor(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr ? udp_senders_processor(*udp) : 0;
  }
  Direction* const in = side->in.control;
  return in != nullptr ? in->sender_processor.load(std::memory_order_relaxed) : 0;
}

bool wants_input(const Registration& entry) noexcept {
  return entry.present && (entry.event.events & (EPOLLIN | EPOLLRDNORM)) != 0;
}

bool is_news(const Registration& entry, std::uint64_t position) noexcept {
  return position != kNever && wants_input(entry) &&
         ((entry.event.events & EPOLLET) == 0 || entry.reported != position);
}

// Tells of hot sockets with bytes in their rings. Those that have long been idle are taken out and
// named, to be watched.
int collect(Set& set, epoll_event* events, int most, std::array<int, 16>& idle,
            std::uint32_t& idle_count) noexcept {
  const Guard guard(set.lock);
  int found = 0;
  idle_count = 0;
  const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
  if (count == 0) return 0;
  // Where there are more than fit, the next call goes on with the others.
  const std::uint32_t begin = count > static_cast<std::uint32_t>(most) ? set.turn++ % count : 0;
  for (std::uint32_t i = 0; i < count && found < most; ++i) {
    const int fd = set.hot[(begin + i) % count];
    Registration& entry = registration(set, fd);
    const std::uint64_t position = ring_position(fd);
    if (!is_news(entry, position)) {
      if (++entry.idle >= kIdleLooks && position == kNever && idle_count < idle.size())
        idle[idle_count++] = fd;
      continue;
    }
    entry.idle = 0;
    entry.reported = position;
    events[found++] = {.events = entry.event.events & (EPOLLIN | EPOLLRDNORM),
                       .data = entry.event.data};
    if ((entry.event.events & EPOLLONESHOT) != 0) {
      // The kernel does not know that it has been told of.
      epoll_event disarmed{.events = EPOLLONESHOT, .data = entry.event.data};
      kernel(SYS_epoll_ctl, set.fd, EPOLL_CTL_MOD, fd, &disarmed);
      entry.event.events = EPOLLONESHOT;
    }
  }
  for (std::uint32_t i = 0; i < idle_count; ++i) remove_hot(set, idle[i]);
  return found;
}

void watch_idle(Set& set, const std::array<int, 16>& idle, std::uint32_t count) noexcept {
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!watch(idle[i])) continue;
    const Guard guard(set.lock);
    make_hot(set, idle[i]);
  }
}

// Takes all hot ones out and has them watched; those with news are put back. True if any has.
bool watch_all(Set& set) noexcept {
  std::array<int, kMostHot> taken;
  std::uint32_t count;
  {
    const Guard guard(set.lock);
    count = take_hot(set, taken);
  }
  bool news = false;
  for (std::uint32_t i = 0; i < count; ++i) {
    if (!watch(taken[i])) continue;
    const Guard guard(set.lock);
    const Registration& entry = registration(set, taken[i]);
    if (!entry.present) continue;
    if (is_news(entry, ring_position(taken[i]))) {
      news = true;
      make_hot(set, taken[i]);
    }
  }
  return news;
}

// Those of the kernel behind those of the rings; none twice.
int merge(epoll_event* events, int ours, int kernels) noexcept {
  int all = ours;
  for (int i = ours; i < ours + kernels; ++i) {
    bool same = false;
    for (int j = 0; j < ours && !same; ++j) {
      same = events[j].data.u64 == events[i].data.u64;
      if (same) events[j].events |= events[i].events;
    }
    if (!same) events[all++] = events[i];
  }
  return all;
}

struct Wait {
  int fd;
  epoll_event* events;
  int most;
  bool at_once;  // a timeout of zero
  const sigset_t* mask;
  // The program's own call.
  int (*as_it_is)(const void* arguments);
  const void* arguments;
};

long look_at_kernel(Set& set, const Wait& wait, int from) noexcept {
  const long told = kernel(SYS_epoll_pwait, wait.fd, wait.events + from, wait.most - from, 0,
                           wait.mask, kKernelMaskSize);
  if (told > 0) set.told_at.store(ticks(), std::memory_order_relaxed);
  return told;
}

int ask_kernel(Set& set, const Wait& wait) {
  const int result = wait.as_it_is(wait.arguments);
  if (result > 0) set.told_at.store(ticks(), std::memory_order_relaxed);
  return result;
}

// An exclusive registration cannot be changed, only made anew.
void change_registration(int set, int fd, epoll_event event) noexcept {
  if (kernel(SYS_epoll_ctl, set, EPOLL_CTL_MOD, fd, &event) != -EINVAL) return;
  kernel(SYS_epoll_ctl, set, EPOLL_CTL_DEL, fd, nullptr);
  kernel(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, &event);
}

// Puts right what kick() did; in the `count` events that have been reported, too.
void after_kick(Set& set, epoll_event* events, int count) noexcept {
  const Guard guard(set.lock);
  const int fd = std::exchange(set.kicked, -1);
  if (fd < 0 || !registration(set, fd).present) return;
  epoll_event right = registration(set, fd).event;
  change_registration(set.fd, fd, right);
  for (int i = 0; i < count; ++i)
    if (events[i].data.u64 == right.data.u64)
      events[i].events = (events[i].events & (right.events | EPOLLERR | EPOLLHUP)) | EPOLLIN;
}

int sleep_in_set(Set& set, const Wait& wait) {
  const int result = ask_kernel(set, wait);
  set.waiters.fetch_sub(1, std::memory_order_relaxed);
  if (set.kicked >= 0) [[unlikely]] {
    const int error = errno;
    after_kick(set, wait.events, result);
    errno = error;
  }
  return result;
}

int wait_in_set(Set& set, const Wait& wait) {
  for (bool stayed = false;;) {
    if (set.hot_count.load(std::memory_order_relaxed) == 0) {
      Guard guard(set.lock);
      if (set.hot_count.load(std::memory_order_relaxed) == 0) {
        // Under the lock: nobody becomes hot from now on.
        set.waiters.fetch_add(1, std::memory_order_relaxed);
        guard.unlock();
        return sleep_in_set(set, wait);
      }
    }
    std::array<int, 16> idle;
    std::uint32_t idle_count;
    int found = collect(set, wait.events, wait.most, idle, idle_count);
    if (idle_count != 0) watch_idle(set, idle, idle_count);
    if (found != 0) {
      const std::uint64_t now = ticks();
      if (found < wait.most && (++set.calls % 8 == 0 || now - set.looked_at > kLookEvery)) {
        set.looked_at = now;
        const long more = look_at_kernel(set, wait, found);
        if (more > 0) found = merge(wait.events, found, static_cast<int>(more));
      }
      return found;
    }
    if (wait.at_once) return ask_kernel(set, wait);
    if (!stayed) {
      stayed = true;
      long seen = 0;
      unsigned looks = 0;
      std::array<int, kMostHot> hot;
      std::uint32_t count;
      {
        const Guard guard(set.lock);
        count = set.hot_count.load(std::memory_order_relaxed);
        std::copy_n(set.hot.begin(), count, hot.begin());
      }
      if (count != 0) {
        const std::uint32_t here = this_processor();
        for (std::uint32_t i = 0; i < count; ++i) note_processor(hot[i], here);
        const bool news = set.patience.stay_awake(
            [&] {
              for (std::uint32_t i = 0; i < count; ++i) {
                const std::uint64_t position = ring_position(hot[i]);
                if (position != kNever && is_news(registration(set, hot[i]), position)) return true;
              }
              looks += count;
              if (looks < 512) return false;
              looks = 0;
              seen = look_at_kernel(set, wait, 0);
              return seen != 0;
            },
            [&] { return peer_processor(hot[0]); });
        if (seen != 0) return static_cast<int>(with_errno(seen));
        if (news) {
          stayed = false;
          continue;
        }
        if (set.patience.interruption() != Interruption::none)
          return static_cast<int>(with_errno(-EINTR));
      }
    }
    set.waiters.fetch_add(1, std::memory_order_relaxed);
    if (!watch_all(set)) {
      const int result = sleep_in_set(set, wait);
      set.patience.slept();
      return result;
    }
    set.waiters.fetch_sub(1, std::memory_order_relaxed);
  }
}

// A socket with bytes in its ring has come into a set in which somebody sleeps.
void kick(int set, int fd, epoll_event event) noexcept {
  event.events |= EPOLLOUT;  // which is always so
  change_registration(set, fd, event);
}

void stay_with_kernel(int fd) noexcept {
  if (Side* const side = find_side(fd)) side->stay_watched.store(true, std::memory_order_relaxed);
  if (UdpSocket* const udp = find_udp(fd)) udp->stay_watched.store(true, std::memory_order_relaxed);
  watch(fd);
}

// A set knows of one descriptor only.
bool several_refer_to(int fd) noexcept {
  if (const Side* const side = find_side(fd)) return local_references(*side) > 1;
  const UdpSocket* const udp = find_udp(fd);
  return udp != nullptr && udp->references.load(std::memory_order_relaxed) > 1;
}

// Watches it unless it is awake and the set looks at it from now on. True if there is something
// to read that the kernel does not know of, and the set must be told.
bool settle(int fd) noexcept {
  if (Side* const side = find_side(fd)) {
    const Guard guard(side->receive_lock);
    if (!guard || side->in.control == nullptr) return false;
    if (!side->receiver.watched() && epoll_allows_wake_up(fd)) return false;
  } else if (UdpSocket* const udp = find_udp(fd)) {
    const Guard guard(udp->receive_lock);
    if (!guard || udp->in_count == 0) return false;
    for (std::size_t i = 0; i < udp->in_count; ++i)
      if (!udp->in[i].receiver.watched() && epoll_allows_wake_up(fd)) return false;
  }
  return watch(fd);
}

void registered(int set_fd, int operation, int fd, const epoll_event* event) noexcept {
  leave_to_kernel(fd);
  Set* const set = make_set(set_fd);
  if (set == nullptr) {
    // Nobody looks at its sockets: they must stay with the kernel.
    stay_with_kernel(fd);
    return;
  }
  if (operation == EPOLL_CTL_DEL) {
    const Guard guard(set->lock);
    remove_hot(*set, fd);
    registration(*set, fd).present = false;
    auto& member = at(member_of, fd);
    if (set_at(member.load(std::memory_order_relaxed)) == set) member.store(0);
    return;
  }
  note_highest(fd);
  const std::uint16_t own = at(set_of, set_fd).load(std::memory_order_relaxed);
  auto& member = at(member_of, fd);
  std::uint16_t none = 0;
  if (!member.compare_exchange_strong(none, own) && none != own) member.store(kSeveral);
  {
    const Guard guard(set->lock);
    Registration& entry = registration(*set, fd);
    if (operation == EPOLL_CTL_ADD) remove_hot(*set, fd);
    entry.event = *event;
    entry.present = true;
    entry.reported = kNever;
    // Already looked at, and nobody sleeps who would not know.
    if (entry.hot && set->waiters.load(std::memory_order_relaxed) == 0) return;
  }
  if (find_side(fd) == nullptr && find_udp(fd) == nullptr) return;
  if (operation == EPOLL_CTL_ADD && several_refer_to(fd)) return stay_with_kernel(fd);
  if ((event->events & (EPOLLIN | EPOLLRDNORM)) == 0 || !settle(fd)) return;
  // The kernel does not know that there is something to read.
  bool asleep = false;
  {
    const Guard guard(set->lock);
    make_hot(*set, fd);
    asleep = set->waiters.load(std::memory_order_relaxed) != 0;
    if (asleep) set->kicked = fd;
  }
  if (asleep) kick(set_fd, fd, *event);
}

void before_fork() noexcept { sets_lock.lock(); }
void in_parent() noexcept { sets_lock.unlock(); }
// The child's sets are its parent's in the kernel; it has sockets of its own in sets of its own.
void in_child() noexcept {
  for (auto& place : sets) {
    Set* const set = place.load(std::memory_order_relaxed);
    if (set == nullptr) continue;
    new (&set->lock) Lock;
    set->kernel_only = true;
    set->hot_count.store(0, std::memory_order_relaxed);
    set->waiters.store(0, std::memory_order_relaxed);
  }
  sets_lock.unlock();
}

[[gnu::constructor]] void start() noexcept {
  at_fork({before_fork, in_parent, in_child});
#ifdef SYS_epoll_create
  next_epoll_create.look_up();
#endif
  next_epoll_create1.look_up();
  next_epoll_ctl.look_up();
}

}  // namespace

bool epoll_told_since(int fd, std::uint64_t looked_at) noexcept {
  if (!in_range(fd)) return false;
  const std::uint16_t member = at(member_of, fd).load(std::memory_order_relaxed);
  if (member == 0) return false;
  const Set* const set = set_at(member);
  return set == nullptr || set->told_at.load(std::memory_order_relaxed) >= looked_at;
}

bool epoll_allows_wake_up(int fd) noexcept {
  if (!in_range(fd)) return false;
  const std::uint16_t member = at(member_of, fd).load(std::memory_order_acquire);
  if (member == 0) return true;
  Set* const set = set_at(member);
  if (set == nullptr) return false;  // in several
  const Guard guard(set->lock);
  const Registration& entry = registration(*set, fd);
  if (!guard || set->kernel_only || set->waiters.load(std::memory_order_relaxed) != 0 ||
      (entry.event.events & (EPOLLONESHOT | EPOLLEXCLUSIVE)) != 0)
    return false;
  return make_hot(*set, fd);
}

bool is_registered(int fd) noexcept {
  return in_range(fd) && (at(member_of, fd).load(std::memory_order_relaxed) != 0 ||
                          at(set_of, fd).load(std::memory_order_relaxed) != 0);
}

int highest_known() noexcept {
  return std::max(highest_descriptor(), highest_member.load(std::memory_order_relaxed));
}

void forget_registrations(int fd) noexcept {
  if (!is_registered(fd) || !in_own_process()) [[likely]]
    return;
  const std::uint16_t member = at(member_of, fd).exchange(0);
  for (std::uint16_t i = 0; i < kMostSets && member != 0; ++i) {
    if (member != kSeveral && i != member - 1) continue;
    Set* const set = sets[i].load(std::memory_order_acquire);
    if (set == nullptr || set->by_fd == nullptr) continue;
    const Guard guard(set->lock);
    remove_hot(*set, fd);
    registration(*set, fd).present = false;
  }
  if (Set* const set = find_set(fd)) {
    // Its sockets are in no set any more, nor is anybody waiting for them here.
    const Guard all(sets_lock);
    const Guard guard(set->lock);
    const std::uint16_t own = at(set_of, fd).exchange(0);
    for (int i = 0; i <= highest_member.load(std::memory_order_relaxed); ++i) {
      std::uint16_t expected = own;
      at(member_of, i).compare_exchange_strong(expected, 0);
    }
    set->hot_count.store(0, std::memory_order_relaxed);
    set->fd = -1;
    kernel(SYS_munmap, set->by_fd, kRegistrationBytes);
    set->by_fd = nullptr;
  }
}

void leave_to_kernel(int fd) noexcept {
  Set* const set = find_set(fd);
  if (set == nullptr || set->kernel_only) [[likely]]
    return;
  {
    const Guard guard(set->lock);
    set->kernel_only = true;
  }
  watch_all(*set);
}

}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int epoll_create(int size) {
#ifdef SYS_epoll_create
  const long fd = next_epoll_create(size);
#else
  const long fd = size <= 0 ? -EINVAL : next_epoll_create1(0);
#endif
  if (fd >= 0) forget_registrations(static_cast<int>(fd));
  return static_cast<int>(with_errno(fd));
}

int epoll_create1(int flags) {
  const long fd = next_epoll_create1(flags);
  if (fd >= 0) forget_registrations(static_cast<int>(fd));
  return static_cast<int>(with_errno(fd));
}

int epoll_ctl(int set, int operation, int fd, epoll_event* event) {
  const long result = next_epoll_ctl(set, operation, fd, event);
  if (result == 0 && in_range(fd) && in_range(set) && !is_confined())
    registered(set, operation, fd, event);
  return static_cast<int>(with_errno(result));
}

int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  using Function = int(int, epoll_event*, int, int);
  Set* const set = find_set(fd);
  if (set == nullptr || most <= 0 || is_no_address(events))
    return real::next<"epoll_wait", Function>()(fd, events, most, timeout);
  struct Arguments {
    int fd;
    epoll_event* events;
    int most, timeout;
  } const arguments{fd, events, most, timeout};
  return wait_in_set(*set, {.fd = fd,
                            .events = events,
                            .most = most,
                            .at_once = timeout == 0,
                            .mask = nullptr,
                            .as_it_is =
                                [](const void* pointer) {
                                  const auto* a = static_cast<const Arguments*>(pointer);
                                  return real::next<"epoll_wait", Function>()(a->fd, a->events,
                                                                              a->most, a->timeout);
                                },
                            .arguments = &arguments});
}

int epoll_pwait(int fd, epoll_event* events, int most, int timeout, const sigset_t* mask) {
  using Function = int(int, epoll_event*, int, int, const sigset_t*);
  Set* const set = find_set(fd);
  if (set == nullptr || most <= 0 || is_no_address(events))
    return real::next<"epoll_pwait", Function>()(fd, events, most, timeout, mask);
  struct Arguments {
    int fd;
    epoll_event* events;
    int most, timeout;
    const sigset_t* mask;
  } const arguments{fd, events, most, timeout, mask};
  return wait_in_set(*set, {.fd = fd,
                            .events = events,
                            .most = most,
                            .at_once = timeout == 0,
                            .mask = mask,
                            .as_it_is =
                                [](const void* pointer) {
                                  const auto* a = static_cast<const Arguments*>(pointer);
                                  return real::next<"epoll_pwait", Function>()(
                                      a->fd, a->events, a->most, a->timeout, a->mask);
                                },
                            .arguments = &arguments});
}

int epoll_pwait2(int fd, epoll_event* events, int most, const timespec* timeout,
                 const sigset_t* mask) {
  using Function = int(int, epoll_event*, int, const timespec*, const sigset_t*);
  Set* const set = find_set(fd);
  if (set == nullptr || most <= 0 || is_no_address(events))
    return real::next<"epoll_pwait2", Function>()(fd, events, most, timeout, mask);
  struct Arguments {
    int fd;
    epoll_event* events;
    int most;
    const timespec* timeout;
    const sigset_t* mask;
  } const arguments{fd, events, most, timeout, mask};
  return wait_in_set(
      *set, {.fd = fd,
             .events = events,
             .most = most,
             .at_once = !is_no_address(timeout) && timeout->tv_sec == 0 && timeout->tv_nsec == 0,
             .mask = mask,
             .as_it_is =
                 [](const void* pointer) {
                   const auto* a = static_cast<const Arguments*>(pointer);
                   return real::next<"epoll_pwait2", Function>()(a->fd, a->events, a->most,
                                                                 a->timeout, a->mask);
                 },
             .arguments = &arguments});
}

}  // extern "C"
