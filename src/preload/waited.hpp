// SPDX-License-Identifier: Apache-2.0
//
// The sockets that a call of poll() or select() waits for.
#pragma once

#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "preload/connection.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/readiness.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"

namespace farcall::preload {

inline constexpr short kPollInput = POLLIN | POLLRDNORM;

// The sockets that one call waits for.
class Waited {
 public:
  explicit Waited(std::size_t most) noexcept {
    if (most <= few_.size()) return;
    const long memory = kernel(SYS_mmap, nullptr, most * sizeof(Entry), PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory < 0) return;
    entries_ = reinterpret_cast<Entry*>(memory);
    most_ = most;
  }
  Waited(const Waited&) = delete;
  Waited& operator=(const Waited&) = delete;
  ~Waited() {
    if (entries_ != few_.data()) kernel(SYS_munmap, entries_, most_ * sizeof(Entry));
  }

  void add(int fd) noexcept {
    Side* const side = find_side(fd);
    UdpSocket* const udp = side == nullptr ? find_udp(fd) : nullptr;
    if (side == nullptr && udp == nullptr) return leave_to_kernel(fd);
    // No memory: one that cannot be looked after stays with the kernel.
    if (count_ == most_) return leave_socket_to_kernel(fd);
    if (side != nullptr ? side->accelerated() : udp_awake(*udp)) ++accelerated_;
    entries_[count_++] = {.side = side,
                          .udp = udp,
                          .fd = fd,
                          .generation = 0,
                          .ticket = {},
                          .was_awake = false,
                          .woken = false,
                          .readable = false};
  }
  [[nodiscard]] std::size_t accelerated() const noexcept { return accelerated_; }

  // Before sleeping. True if there is something to read in memory.
  bool enter() noexcept {
    bool news = false;
    const std::uint32_t here = this_processor();
    for (Entry* entry = entries_; entry != end(); ++entry)
      news = (entry->side != nullptr ? enter(*entry, here)
                                     : udp_enter_kernel(*entry->udp, entry->fd, entry->ticket)) ||
             news;
    return news;
  }
  void leave() noexcept {
    for (Entry* entry = entries_; entry != end(); ++entry) {
      if (entry->side == nullptr) {
        udp_leave_kernel(*entry->udp, entry->fd, entry->ticket);
        continue;
      }
      Side& side = *entry->side;
      const Guard guard(side.receive_lock);
      if (!guard || entry->generation != side.generation.load(std::memory_order_relaxed)) continue;
      side.receiver.leave_kernel(side.in(), 0);
      side.polled.store(true, std::memory_order_relaxed);
      // Awake again, all of them, not only the one that has something; unless nobody stays awake.
      if (entry->was_awake && side.in().control != nullptr && !others_compete(side))
        wake_up(side, entry->fd);
    }
  }

  // True if the kernel may have told of something that is not the program's.
  bool take_doorbells() noexcept {
    bool any = false;
    for (Entry* entry = entries_; entry != end(); ++entry)
      if (entry->side != nullptr && take_doorbell_told(*entry->side, entry->fd)) any = true;
    return any;
  }

  // Notes which can be read from memory; how many.
  std::size_t note_readable() noexcept {
    return static_cast<std::size_t>(std::count_if(
        entries_, end(), [](Entry& entry) { return entry.readable = readable_now(entry.fd); }));
  }
  template <class Visit>
  void each_readable(Visit visit) const {
    for (const Entry* entry = entries_; entry != end(); ++entry)
      if (entry->readable) visit(entry->fd);
  }

  // Whether to look for a while before sleeping; to be asked once.
  bool pays() noexcept {
    Patience& patience = own_patience();
    const Entry* const some =
        std::find_if(entries_, end(), [](const Entry& entry) { return is_awake(entry); });
    if (accelerated_ > kMostSpunFor || some == end()) return false;
    patience_ = &patience;
    if (patience.pays(peer_processor(some->fd))) return true;
    patience.sleeps_unlooked();
    return false;
  }
  // `look` asks the kernel, too, now and then; what it says is returned if it is not 0. After
  // pays().
  template <class Look>
  int stay_awake(Look look) noexcept {
    if (!wake_all()) return 0;
    int seen = 0;
    std::size_t looks = 0;
    const Stayed stayed = patience_->stay_awake(
        [&] {
          if (std::any_of(entries_, end(), may_be_readable)) return true;
          looks += count_;
          if (looks < kLooksPerCall) return false;
          looks = 0;
          seen = look();
          return seen != 0;
        },
        [&] { return peer_processor(first_->fd); });
    interruption_ = stayed.interruption;
    if (stayed && seen == 0) seen = look();
    watch_woken();
    return seen;
  }
  // Nothing has been waited for.
  static void came_at_once() noexcept { own_patience().came_at_once(); }
  [[nodiscard]] bool interrupted() const noexcept { return interruption_ != Interruption::none; }
  void slept() noexcept {
    if (patience_ != nullptr) patience_->slept();
  }

 private:
  static constexpr std::size_t kMostSpunFor = 32;
  static constexpr std::size_t kLooksPerCall = 512;
  struct Entry {
    Side* side;  // or:
    UdpSocket* udp;
    int fd;
    std::uint32_t generation;
    UdpTicket ticket;
    bool was_awake;
    bool woken;
    bool readable;
  };
  [[nodiscard]] Entry* end() const noexcept { return entries_ + count_; }
  static Patience& own_patience() noexcept {
    static thread_local constinit Patience patience;
    return patience;
  }

  bool enter(Entry& entry, std::uint32_t here) noexcept {
    Side& side = *entry.side;
    const Guard guard(side.receive_lock);
    if (!guard) return false;
    entry.generation = side.generation.load(std::memory_order_relaxed);
    side.receiver.enter_kernel();
    if (side.in().control == nullptr) return false;
    side.in().control->receiver_processor.store(here, std::memory_order_relaxed);
    entry.was_awake = accelerated_ <= kMostSpunFor && !side.receiver.watched();
    if (!side.receiver.watched()) side.receiver.watch(side.in());
    return side.receiver.next(side.in()).kind == Receiver::Next::ring;
  }

  static bool is_awake(const Entry& entry) noexcept {
    return entry.side == nullptr ? udp_awake(*entry.udp) : entry.side->accelerated();
  }
  static bool may_be_readable(const Entry& entry) noexcept {
    if (entry.side == nullptr) return udp_position(*entry.udp) != kNoDatagram;
    const Side& side = *entry.side;
    const Ring ring = side.in();  // it may be closed meanwhile
    return ring.control != nullptr && !side.receiver.watched() && side.receiver.may_have_news(ring);
  }

  // While this thread is awake the senders can know it. False if there is nobody to look at.
  bool wake_all() noexcept {
    const std::uint32_t here = this_processor();
    first_ = nullptr;
    for (Entry* entry = entries_; entry != end(); ++entry) {
      if (entry->side == nullptr) {
        if (!udp_awake(*entry->udp)) continue;
      } else {
        Side& side = *entry->side;
        if (side.in().control == nullptr || side.out().control == nullptr) continue;
        if (side.receiver.watched()) {
          const Guard guard(side.receive_lock);
          if (guard && side.in().control != nullptr) wake_up(side, entry->fd);
          entry->woken = guard && !side.receiver.watched();
        }
      }
      note_processor(entry->fd, here);
      first_ = entry;
    }
    return first_ != nullptr;
  }
  // Who goes on by other means must not miss what comes later. What can be read already is no news
  // to the program.
  void watch_woken() noexcept {
    for (Entry* entry = entries_; entry != end(); ++entry) {
      if (!entry->woken || read_position(entry->fd) != kNothingToRead) continue;
      watch(entry->fd);
      entry->woken = false;
    }
  }

  std::array<Entry, 16> few_;  // stacks may be small
  Entry* entries_ = few_.data();
  std::size_t most_ = few_.size();
  std::size_t count_ = 0;
  std::size_t accelerated_ = 0;
  Entry* first_ = nullptr;
  Patience* patience_ = nullptr;
  Interruption interruption_ = Interruption::none;
};

bool concerns_us(int fd) noexcept { return is_ours(fd) || is_registered(fd); }

inline bool is_zero(const timespec* time) noexcept {
  return !is_no_address(time) && time->tv_sec == 0 && time->tv_nsec == 0;
}

// Awake for a while, then asleep in the program's own call, which has that mask, or none. `look`
// asks rings and kernel at once.
template <class Look, class LibcCall>
int wait_for(Waited& waited, const sigset_t* mask, Look look, LibcCall libc_call) {
  MaskedSignals masked;
  // Where nobody stays awake, a look before the sleep would be one more call.
  if (waited.accelerated() != 0 && !others_compete(this_processor())) {
    int ready = look();
    if (ready != 0) {
      Waited::came_at_once();
      return ready;
    }
    if (waited.pays()) {
      masked.block(mask);
      if ((ready = waited.stay_awake(look)) != 0) return ready;
    }
    if (waited.interrupted()) {
      errno = EINTR;
      return -1;
    }
  }
  // A peer that rings for ever is no more patient than one that sends: the program is told of it.
  constexpr int kMostRings = 64;
  for (int rings = 0;; ++rings) {
    while (waited.enter()) {
      waited.leave();
      // Another thread may have taken it.
      if (const int ready = look(); ready != 0) return ready;
    }
    settle_before_sleep();
    const int ready = libc_call();
    const int error = errno;
    waited.leave();
    waited.slept();
    errno = error;
    if (ready <= 0 || rings == kMostRings || !waited.take_doorbells()) return ready;
    if (const int others = look(); others != 0) return others;
  }
}

// What is left of a time limit each time that a call sleeps.
class TimeLeft {
 public:
  // In nanoseconds; negative: none.
  explicit TimeLeft(std::int64_t limit) noexcept : limit_(limit) {}
  explicit TimeLeft(const timespec* limit) noexcept
      : limit_(limit == nullptr || limit->tv_sec > kLongest
                   ? -1
                   : limit->tv_sec * kSecond + limit->tv_nsec) {}
  std::int64_t nanoseconds() noexcept {
    if (limit_ <= 0) return limit_;
    const std::int64_t now = monotonic_ns();
    if (end_ == 0) end_ = now + limit_;
    return std::max<std::int64_t>(end_ - now, 0);
  }
  int milliseconds() noexcept {
    const std::int64_t left = nanoseconds();
    return left < 0 ? -1 : static_cast<int>((left + kMillisecond - 1) / kMillisecond);
  }
  // `room` for it; null where there is no limit.
  const timespec* time(timespec& room) noexcept {
    const std::int64_t left = nanoseconds();
    if (left < 0) return nullptr;
    room = {.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
    return &room;
  }

  static constexpr std::int64_t kMillisecond = 1'000'000;

 private:
  static constexpr std::int64_t kSecond = 1'000'000'000;
  static constexpr std::int64_t kLongest = std::int64_t{1} << 32;  // seconds: for ever
  const std::int64_t limit_;
  std::int64_t end_ = 0;
};

}  // namespace farcall::preload
