// SPDX-License-Identifier: Apache-2.0
//
// Waiting in a set: its rings are looked at, and the kernel is asked.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "preload/address.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/epoll/hot.hpp"
#include "preload/epoll/told.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/wait_by_number.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint16_t kIdleLooks = 256;
constexpr std::uint32_t kCallsPerLook = 8;
constexpr std::uint32_t kLooksPerCall = 512;
constexpr std::uint64_t kLookEvery = 20 * kTicksPerMicrosecond;

// A call of the library waits in it.
void note_waiter(Set& set, int set_fd) noexcept {
  Waiters before = set.waiters.load(std::memory_order_relaxed);
  if (before == Waiters::kernel) return;
  if (known_elsewhere(set) || before == Waiters::inherited) return leave_set_to_kernel(set, set_fd);
  if (before == Waiters::unknown)
    set.waiters.compare_exchange_strong(before, Waiters::here, std::memory_order_relaxed);
}

struct Wait {
  enum class By : std::uint8_t { wait, pwait, pwait2, number };
  By by;
  int fd;
  epoll_event* events;
  int most;
  int timeout = -1;                   // of wait, pwait and their numbers
  const timespec* longest = nullptr;  // of pwait2 and its number
  const sigset_t* mask = nullptr;
  long number = 0;
  const long* words = nullptr;  // the arguments of a call by number
  std::int64_t until = 0;       // nanoseconds; 0: it has not slept yet, or has no end
  timespec rest{};
  static constexpr std::int64_t kForEver = 1'000'000'000;  // seconds

  // Before it sleeps, and when it has been woken by what was no news: the rest of its time.
  void begin() noexcept {
    if (until != 0) return;
    if (timeout > 0)
      until = monotonic_ns() + std::int64_t{timeout} * 1'000'000;
    else if (longest != nullptr && longest->tv_sec < kForEver)
      until = monotonic_ns() + std::int64_t{longest->tv_sec} * 1'000'000'000 + longest->tv_nsec;
  }
  void go_on() noexcept {
    if (until == 0) return;
    const std::int64_t left = std::max<std::int64_t>(until - monotonic_ns(), 0);
    if (longest == nullptr) {
      timeout = static_cast<int>((left + 999'999) / 1'000'000);
    } else {
      rest = {.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
      longest = &rest;
    }
  }
  [[nodiscard]] bool at_once() const noexcept {
    return timeout == 0 ||
           (!is_no_address(longest) && longest->tv_sec == 0 && longest->tv_nsec == 0);
  }
  // The program's own call.
  [[nodiscard]] int libc_call() const {
    using Timed = int(int, epoll_event*, int, int);
    using Masked = int(int, epoll_event*, int, int, const sigset_t*);
    using Precise = int(int, epoll_event*, int, const timespec*, const sigset_t*);
    switch (by) {
      case By::wait: return real::next<"epoll_wait", Timed>()(fd, events, most, timeout);
      case By::pwait: return real::next<"epoll_pwait", Masked>()(fd, events, most, timeout, mask);
      case By::pwait2:
        return real::next<"epoll_pwait2", Precise>()(fd, events, most, longest, mask);
      case By::number: break;
    }
    // The rest of the time, in its place.
    const long time = longest != nullptr ? reinterpret_cast<long>(longest)
                      : words[3] == 0    ? 0
                                         : timeout;
    return static_cast<int>(
        with_errno(kernel(number, words[0], words[1], words[2], time, words[4], words[5])));
  }
};

// A call of the kernel that asks for events; by one of those who sleep, or by none of them.
struct Asking {
  std::uint32_t sleeping;
  std::uint32_t kick_changes;  // before it
};

// After each. Returns how many events are for the program.
long kernel_told(Set& set, int set_fd, epoll_event* events, long count,
                 const Asking& asking) noexcept {
  if (count > 0) {
    set.told_at.store(now_ticks(), std::memory_order_relaxed);
    count = std::remove_if(events, events + count,
                           [](const epoll_event& one) { return one.data.u64 == kDisarmed; }) -
            events;
    count = without_doorbells(set, set_fd, events, static_cast<int>(count));
  }
  // acquire: pairs with the release in undo_kicks()
  if (set.kicked_count.load(std::memory_order_acquire) != 0 ||
      set.kick_changes.load(std::memory_order_relaxed) != asking.kick_changes) [[unlikely]]
    if (const int left =
            undo_kicks(set, set_fd, events, static_cast<int>(std::max(count, 0L)), asking.sleeping);
        count > 0)
      count = left;
  if (count > 0) add_resets(set, set_fd, events, static_cast<int>(count));
  return count;
}

long look_at_kernel(Set& set, const Wait& wait, int from) noexcept {
  const Asking asking{.sleeping = 0,
                      .kick_changes = set.kick_changes.load(std::memory_order_relaxed)};
  const long told = kernel(SYS_epoll_pwait, wait.fd, wait.events + from, wait.most - from, 0,
                           wait.mask, kKernelMaskSize);
  return kernel_told(set, wait.fd, wait.events + from, told, asking);
}

// kNoNews: it was woken, but by nothing that is the program's business.
constexpr int kNoNews = -2;
int ask_kernel(Set& set, const Wait& wait, std::uint32_t sleeping) {
  const Asking asking{.sleeping = sleeping,
                      .kick_changes = set.kick_changes.load(std::memory_order_relaxed)};
  const int result = wait.libc_call();
  const int error = errno;
  const long told = kernel_told(set, wait.fd, wait.events, result, asking);
  errno = error;
  return result > 0 && told == 0 ? kNoNews : static_cast<int>(told);
}

// What was no news may have taken the place of what is: then it is asked once more.
int ask_kernel_at_once(Set& set, const Wait& wait) {
  for (int tries = 0; tries < 8; ++tries)
    if (const int told = ask_kernel(set, wait, 0); told != kNoNews) return told;
  return 0;
}

// What else the kernel has to tell of a socket with bytes in memory: that there is room to send, or
// that the peer has ended. An edge of that is told of when it comes.
std::uint32_t also_ready(int fd, const epoll_event& wanted) noexcept {
  constexpr std::uint32_t kOutput = EPOLLOUT | EPOLLWRNORM;
  const bool asks = (wanted.events & kOutput) != 0 && (wanted.events & EPOLLET) == 0;
  if (!asks && !has_ended(fd)) [[likely]]
    return 0;
  const std::uint32_t events = wanted.events & (kOutput | EPOLLRDHUP);
  return static_cast<std::uint16_t>(poll_now(fd, static_cast<short>(events)));
}
static_assert(EPOLLOUT == POLLOUT && EPOLLHUP == POLLHUP && EPOLLERR == POLLERR &&
              EPOLLRDHUP == POLLRDHUP && EPOLLWRNORM == POLLWRNORM);

epoll_event* find_data(epoll_event* events, int count, std::uint64_t data) noexcept {
  epoll_event* const found = std::find_if(
      events, events + count, [&](const epoll_event& event) { return event.data.u64 == data; });
  return found == events + count ? nullptr : found;
}

// Tells of hot sockets with bytes in memory, behind the `from` events that are there. Those that
// have long been idle are watched instead.
int look_at_rings(Set& set, const Wait& wait, int from) noexcept {
  std::array<int, 16> idle;
  std::uint32_t idle_count = 0;
  int found = from;
  {
    const Guard guard(set.lock);
    const std::uint32_t count = set.hot_count.load(std::memory_order_relaxed);
    if (!guard || count == 0 || !is_still(set, wait.fd)) return 0;
    // Where there are more than fit, the next call goes on with the others.
    std::uint32_t place = set.next_hot < count ? set.next_hot : 0;
    for (std::uint32_t i = 0; i < count; ++i, place = place + 1 == count ? 0 : place + 1) {
      const int fd = hot_at(set, place);
      Registration& entry = set.by_fd[fd];
      const std::uint64_t position = read_position(fd);
      if (!is_news(entry, position)) {
        if (++entry.idle >= kIdleLooks && position == kNothingToRead && idle_count < idle.size())
          idle[idle_count++] = fd;
        continue;
      }
      // Where all places are taken the kernel may have told of the same socket, that there is room
      // to send.
      epoll_event* told = wait.events + found;
      if (found == wait.most) {
        told = find_data(wait.events, from, entry.event.data.u64);
      } else {
        *told = {.events = 0, .data = entry.event.data};
        ++found;
      }
      if (told == nullptr) break;
      told->events |= (entry.event.events & kInput) | also_ready(fd, entry.event);
      entry.idle = 0;
      entry.reported = position;
      if ((entry.event.events & EPOLLONESHOT) != 0) disarm(set, wait.fd, fd);
    }
    set.next_hot = place;
    for (std::uint32_t i = 0; i < idle_count; ++i) make_cold(set, idle[i]);
  }
  add_resets(set, wait.fd, wait.events + from, found - from);
  if (idle_count != 0) watch_taken(set, wait.fd, idle.data(), idle_count, false);
  return found - from;
}

// The `second` events behind the `first`; none twice.
int merge(epoll_event* events, int first, int second) noexcept {
  int all = first;
  for (int i = first; i < first + second; ++i) {
    if (epoll_event* const same = find_data(events, first, events[i].data.u64))
      same->events |= events[i].events;
    else
      events[all++] = events[i];
  }
  return all;
}

// Rings, and now and then the kernel; always where somebody waits for room to send, which there is
// most of the time. Where one of them alone fills the call they take turns.
int look(Set& set, const Wait& wait) noexcept {
  const std::uint32_t ends = ends_made.load(std::memory_order_relaxed);
  if (set.kernel_next || ends != set.ends_told) [[unlikely]] {
    set.kernel_next = false;
    set.ends_told = ends;
    const long told = look_at_kernel(set, wait, 0);
    const int kernels = static_cast<int>(std::max(told, 0L));
    return merge(wait.events, kernels, look_at_rings(set, wait, kernels));
  }
  const int rings = look_at_rings(set, wait, 0);
  if (rings == 0) return 0;
  // Another thread may have ended a connection meanwhile, and have sent then what has been seen.
  const std::uint32_t ends_since = ends_made.load(std::memory_order_relaxed);
  const std::uint64_t now = now_ticks();
  if (++set.calls % kCallsPerLook != 0 && now - set.looked_at <= kLookEvery &&
      set.wait_for_room.load(std::memory_order_relaxed) == 0 && ends_since == ends)
    return rings;
  set.looked_at = now;
  set.kernel_next = rings == wait.most;
  if (set.kernel_next) return rings;
  set.ends_told = ends_since;
  const long told = look_at_kernel(set, wait, rings);
  if (told <= 0) return rings;
  const int all = merge(wait.events, rings, static_cast<int>(told));
  if (ends_since != ends) std::rotate(wait.events, wait.events + rings, wait.events + all);
  return all;
}

// --- waiting

// What a thread looks at that stays awake. A copy: the set may change meanwhile, or go.
struct Looked {
  int fd;
  bool edge;
  std::uint64_t reported;

  [[nodiscard]] bool has_news() const noexcept {
    const std::uint64_t position = read_position(fd);
    return position != kNothingToRead && (!edge || position != reported);
  }
};

// Awake for a while. Ready if a ring has news; `told` is what the kernel has said, if not 0.
Stayed stay_awake(Set& set, const Wait& wait, long& told) noexcept {
  std::array<Looked, kMostHot> all;
  std::uint32_t count = 0;
  {
    const Guard guard(set.lock);
    if (!guard) return {false};
    const std::uint32_t hot = set.hot_count.load(std::memory_order_relaxed);
    for (std::uint32_t i = 0; i < hot && count < all.size(); ++i) {
      const int fd = hot_at(set, i);
      const Registration& entry = set.by_fd[fd];
      if ((entry.event.events & kInput) != 0)
        all[count++] = {
            .fd = fd, .edge = (entry.event.events & EPOLLET) != 0, .reported = entry.reported};
    }
  }
  if (count == 0) return {false};
  const std::uint32_t here = this_processor();
  for (std::uint32_t i = 0; i < count; ++i) note_processor(all[i].fd, here);
  // A peer on this processor that has had its turn may have answered by the kernel.
  const bool together = peer_processor(all[0].fd) == here;
  const std::uint32_t looks_per_call = together ? 2 * count : kLooksPerCall;
  std::uint32_t looks = 0;
  const Stayed stayed = set.patience.stay_awake(
      [&] {
        for (std::uint32_t i = 0; i < count; ++i)
          if (all[i].has_news()) return true;
        looks += count;
        if (looks < looks_per_call) return false;
        looks = 0;
        told = look_at_kernel(set, wait, 0);
        return told != 0;
      },
      [&] { return peer_processor(all[0].fd); });
  return {.ready = stayed && told == 0, .interruption = stayed.interruption};
}

// Around a sleep in the kernel: nobody becomes hot meanwhile.
std::uint32_t begin_sleep(Set& set) noexcept {
  set.sleepers.fetch_add(1, std::memory_order_relaxed);
  return set.generation;
}
void end_sleep(Set& set, std::uint32_t generation) noexcept {
  const Guard guard(set.lock);
  if (set.generation == generation) set.sleepers.fetch_sub(1, std::memory_order_relaxed);
}

int sleep(Set& set, Wait& wait, std::uint32_t generation) {
  settle_before_sleep();
  wait.begin();
  const int result = ask_kernel(set, wait, 1);
  if (result == kNoNews) wait.go_on();
  const int error = errno;
  end_sleep(set, generation);
  errno = error;
  return result;
}

int wait_in_set(Set& set, Wait& wait) {
  note_waiter(set, wait.fd);
  MaskedSignals masked;
  for (bool stayed = false;;) {
    if (set.hot_count.load(std::memory_order_relaxed) == 0) {
      Guard guard(set.lock);
      if (!guard || !is_still(set, wait.fd)) return wait.libc_call();
      if (set.hot_count.load(std::memory_order_relaxed) == 0) {
        const std::uint32_t generation = begin_sleep(set);
        guard.unlock();
        set.patience.sleeps_unlooked();
        const int told = sleep(set, wait, generation);
        set.patience.slept();
        if (told != kNoNews) return told;
        continue;
      }
    }
    if (const int found = look(set, wait); found != 0) {
      if (!stayed) set.patience.came_at_once();
      return found;
    }
    if (wait.at_once()) {
      settle_at_times();
      return ask_kernel_at_once(set, wait);
    }
    if (!stayed && looks_itself(set)) {
      stayed = true;
      long told = 0;
      masked.block(wait.mask);
      const Stayed awake = stay_awake(set, wait, told);
      if (awake) {
        stayed = false;
        continue;
      }
      if (told != 0) return static_cast<int>(with_errno(told));
      if (awake.interruption != Interruption::none) return static_cast<int>(with_errno(-EINTR));
    }
    Guard guard(set.lock);
    if (!guard || !is_still(set, wait.fd)) return wait.libc_call();
    const std::uint32_t generation = begin_sleep(set);
    guard.unlock();
    if (!watch_all(set, wait.fd, true)) {
      const int result = sleep(set, wait, generation);
      set.patience.slept();
      if (result != kNoNews) return result;
      continue;
    }
    end_sleep(set, generation);
  }
}

int wait_for(Wait wait) {
  Set* const set = find_set(wait.fd);
  if (set == nullptr || wait.most <= 0 || is_no_address(wait.events) || is_bad_time(wait.longest)) {
    settle_before_sleep();
    return wait.libc_call();
  }
  return wait_in_set(*set, wait);
}

}  // namespace

long epoll_wait_by_number(long number, const long* words) {
  const auto* const mask = reinterpret_cast<const sigset_t*>(words[4]);
  bool precise = false;
#ifdef SYS_epoll_pwait2
  precise = number == SYS_epoll_pwait2;
#endif
  bool masked = precise || number == SYS_epoll_pwait;
  // Of another size: the kernel refuses it.
  if (masked && mask != nullptr && words[5] != static_cast<long>(kKernelMaskSize))
    return with_errno(kernel(number, words[0], words[1], words[2], words[3], words[4], words[5]));
  return wait_for({.by = Wait::By::number,
                   .fd = static_cast<int>(words[0]),
                   .events = reinterpret_cast<epoll_event*>(words[1]),
                   .most = static_cast<int>(words[2]),
                   .timeout = precise ? -1 : static_cast<int>(words[3]),
                   .longest = precise ? reinterpret_cast<const timespec*>(words[3]) : nullptr,
                   .mask = masked ? mask : nullptr,
                   .number = number,
                   .words = words});
}

}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int epoll_wait(int fd, epoll_event* events, int most, int timeout) {
  ::pthread_testcancel();
  return wait_for(
      {.by = Wait::By::wait, .fd = fd, .events = events, .most = most, .timeout = timeout});
}

int epoll_pwait(int fd, epoll_event* events, int most, int timeout, const sigset_t* mask) {
  ::pthread_testcancel();
  return wait_for({.by = Wait::By::pwait,
                   .fd = fd,
                   .events = events,
                   .most = most,
                   .timeout = timeout,
                   .mask = mask});
}

int epoll_pwait2(int fd, epoll_event* events, int most, const timespec* timeout,
                 const sigset_t* mask) {
  ::pthread_testcancel();
  return wait_for({.by = Wait::By::pwait2,
                   .fd = fd,
                   .events = events,
                   .most = most,
                   .longest = timeout,
                   .mask = mask});
}

}  // extern "C"
