// SPDX-License-Identifier: Apache-2.0
//
// Hooks: poll and select. Rings are looked at first; before the call sleeps in the kernel, all
// sockets that it waits for are watched, so that the kernel's answer is the whole truth.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/select.h>

#include <array>
#include <cstring>
#include <utility>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/epoll.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/udp.hpp"

namespace farcall::preload {
namespace {

constexpr short kInput = POLLIN | POLLRDNORM;

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
    if (side == nullptr) {
      if (UdpSocket* const udp = find_udp(fd))
        add_udp(*udp, fd);
      else
        leave_to_kernel(fd);
      return;
    }
    if (count_ == most_) {
      // No memory: one that cannot be looked after stays with the kernel.
      side->stay_watched.store(true, std::memory_order_relaxed);
      const Guard guard(side->receive_lock);
      if (side->in.control != nullptr) side->receiver.watch(side->in);
      return;
    }
    if (side->accelerated()) ++accelerated_;
    entries_[count_++] = {.side = side, .generation = 0, .fd = fd, .was_awake = false};
  }
  [[nodiscard]] bool empty() const noexcept { return count_ == 0; }
  [[nodiscard]] std::size_t accelerated() const noexcept { return accelerated_; }

  // Before sleeping. True if there is something to read in a ring.
  bool enter() noexcept {
    bool news = std::exchange(left_over_, false);
    for (std::size_t i = 0; i < udp_count_; ++i)
      news = udp_enter_kernel(*udp_[i].socket, udp_[i].fd, udp_[i].ticket) || news;
    const bool few = accelerated_ <= kMostSpunFor;
    const std::uint32_t here = this_processor();
    for (std::size_t i = 0; i < count_; ++i) {
      Side& side = *entries_[i].side;
      const Guard guard(side.receive_lock);
      if (!guard) continue;
      entries_[i].generation = side.generation.load(std::memory_order_relaxed);
      side.receiver.enter_kernel();
      if (side.in.control == nullptr) continue;
      side.in.control->receiver_processor.store(here, std::memory_order_relaxed);
      entries_[i].was_awake = few && !side.receiver.watched();
      if (!side.receiver.watched()) side.receiver.watch(side.in);
      news = news || side.receiver.next(side.in).kind == Receiver::Next::ring;
    }
    return news;
  }
  void leave() noexcept {
    for (std::size_t i = 0; i < udp_count_; ++i)
      udp_leave_kernel(*udp_[i].socket, udp_[i].fd, udp_[i].ticket);
    for (std::size_t i = 0; i < count_; ++i) {
      Side& side = *entries_[i].side;
      const Guard guard(side.receive_lock);
      if (!guard || entries_[i].generation != side.generation.load(std::memory_order_relaxed))
        continue;
      side.receiver.leave_kernel(side.in, 0);
      side.polled.store(true, std::memory_order_relaxed);
      // Awake again, all of them, not only the one that has something.
      if (entries_[i].was_awake && side.in.control != nullptr) wake_up(side, entries_[i].fd);
    }
  }
  // `look` asks the kernel now and then; what it says is returned if it is not 0.
  template <class Look>
  int stay_awake(Look look) noexcept {
    static thread_local constinit Patience patience;
    if (accelerated_ > kMostSpunFor) return 0;
    Direction* first = nullptr;
    UdpSocket* first_udp = nullptr;
    const std::uint32_t here = this_processor();
    for (std::size_t i = 0; i < count_; ++i) {
      Direction* const in = entries_[i].side->in.control;
      Direction* const out = entries_[i].side->out.control;
      if (in == nullptr || out == nullptr) continue;
      if (in->receiver_processor.load(std::memory_order_relaxed) != here)
        in->receiver_processor.store(here, std::memory_order_relaxed);
      if (out->sender_processor.load(std::memory_order_relaxed) != here)
        out->sender_processor.store(here, std::memory_order_relaxed);
      first = in;
    }
    for (std::size_t i = 0; i < udp_count_; ++i) {
      if (!udp_awake(*udp_[i].socket)) continue;
      udp_note_processor(*udp_[i].socket, here);
      first_udp = udp_[i].socket;
    }
    if (first == nullptr && first_udp == nullptr) return 0;
    patience_ = &patience;
    int seen = 0;
    std::size_t looks = 0;
    const bool news = patience.stay_awake(
        [&] {
          for (std::size_t i = 0; i < count_; ++i) {
            Side& side = *entries_[i].side;
            if (side.in.control != nullptr && !side.receiver.watched() &&
                side.receiver.may_have_news(side.in))
              return true;
          }
          for (std::size_t i = 0; i < udp_count_; ++i)
            if (udp_position(*udp_[i].socket) != kNoDatagram) return true;
          looks += count_ + udp_count_;
          if (looks < kLooksPerCall) return false;
          looks = 0;
          seen = look();
          return seen != 0;
        },
        [&] {
          return first != nullptr ? first->sender_processor.load(std::memory_order_relaxed)
                                  : udp_senders_processor(*first_udp);
        });
    return news && seen == 0 ? look() : seen;
  }
  [[nodiscard]] bool interrupted() const noexcept {
    return patience_ != nullptr && patience_->interruption() != Interruption::none;
  }
  void slept() noexcept {
    if (patience_ != nullptr) patience_->slept();
  }

 private:
  static constexpr std::size_t kMostSpunFor = 32;
  static constexpr std::size_t kLooksPerCall = 512;
  struct Entry {
    Side* side;
    std::uint32_t generation;
    int fd;
    bool was_awake;
  };
  struct UdpEntry {
    UdpSocket* socket;
    int fd;
    UdpTicket ticket;
  };

  void add_udp(UdpSocket& socket, int fd) noexcept {
    if (udp_count_ == udp_.size()) {
      // One too many: the kernel has it, but for what is there already.
      left_over_ = udp_watch_for_good(socket, fd) || left_over_;
      return;
    }
    if (udp_awake(socket)) ++accelerated_;
    udp_[udp_count_++] = {.socket = &socket, .fd = fd, .ticket = {}};
  }

  std::array<UdpEntry, 32> udp_;
  std::size_t udp_count_ = 0;
  bool left_over_ = false;
  std::array<Entry, 128> few_;
  Entry* entries_ = few_.data();
  std::size_t most_ = few_.size();
  std::size_t count_ = 0;
  std::size_t accelerated_ = 0;
  Patience* patience_ = nullptr;
};

bool readable_now(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr && udp_readable(*udp);
  }
  return side != nullptr && side->accelerated() && ring_readable(*side);
}

// Adds what is in the rings to the kernel's answer.
int add_rings(pollfd* fds, nfds_t count, int ready) noexcept {
  for (nfds_t i = 0; i < count; ++i) {
    if ((fds[i].events & kInput) == 0 || !readable_now(fds[i].fd)) continue;
    if (fds[i].revents == 0) ++ready;
    fds[i].revents = static_cast<short>(fds[i].revents | (fds[i].events & kInput));
  }
  return ready;
}

bool is_zero(const timespec* time) noexcept {
  return !is_no_address(time) && time->tv_sec == 0 && time->tv_nsec == 0;
}

// Awake for a while, then asleep in the program's own call. `look` asks rings and kernel at once.
template <class Look, class AsItIs>
int wait_for(Waited& waited, Look look, AsItIs as_it_is) {
  if (waited.accelerated() != 0) {
    int ready = look();
    if (ready != 0) return ready;
    if ((ready = waited.stay_awake(look)) != 0) return ready;
    if (waited.interrupted()) {
      errno = EINTR;
      return -1;
    }
  }
  while (waited.enter()) {
    waited.leave();
    // Another thread may have taken it.
    if (const int ready = look(); ready != 0) return ready;
  }
  settle_before_sleep();
  const int ready = as_it_is();
  const int error = errno;
  waited.leave();
  waited.slept();
  errno = error;
  return ready;
}

template <class AsItIs>
int poll_for(pollfd* fds, nfds_t count, bool at_once, const sigset_t* mask, AsItIs as_it_is) {
  bool any = false;
  for (nfds_t i = 0; i < count && !any && !is_no_address(fds); ++i)
    any = find_side(fds[i].fd) != nullptr || find_udp(fds[i].fd) != nullptr ||
          is_registered(fds[i].fd);
  if (!any) [[likely]]
    return as_it_is();
  const auto look = [&]() -> int {
    timespec none{};
    const long ready = kernel(SYS_ppoll, fds, count, &none, mask, kKernelMaskSize);
    if (ready < 0) return static_cast<int>(with_errno(ready));
    return add_rings(fds, count, static_cast<int>(ready));
  };
  if (count == 1 && fds[0].events == POLLIN && mask == nullptr && readable_now(fds[0].fd)) {
    fds[0].revents = POLLIN;
    return 1;
  }
  Waited waited(count);
  for (nfds_t i = 0; i < count; ++i)
    if (fds[i].fd >= 0 && (fds[i].events & kInput) != 0) waited.add(fds[i].fd);
  if (at_once) return look();
  return wait_for(waited, look, as_it_is);
}

// The three sets of select, for as many descriptors as they have room for.
struct Sets {
  fd_set* read;
  fd_set* write;
  fd_set* except;
};

template <class AsItIs>
int select_for(int count, const Sets& sets, bool at_once, const sigset_t* mask, AsItIs as_it_is) {
  bool any = false;
  const bool bad =
      is_no_address(sets.read) || is_bad_optional(sets.write) || is_bad_optional(sets.except);
  const int checked = bad ? 0 : std::min(count, FD_SETSIZE);
  for (int fd = 0; fd < checked && !any; ++fd)
    any = FD_ISSET(fd, sets.read) &&
          (find_side(fd) != nullptr || find_udp(fd) != nullptr || is_registered(fd));
  if (!any) [[likely]]
    return as_it_is();
  Waited waited(static_cast<std::size_t>(checked));
  for (int fd = 0; fd < checked; ++fd)
    if (FD_ISSET(fd, sets.read)) waited.add(fd);
  // 0: nothing, and the sets are as they were.
  const auto look = [&]() -> int {
    fd_set read = *sets.read;
    fd_set write;
    fd_set except;
    if (sets.write != nullptr) write = *sets.write;
    if (sets.except != nullptr) except = *sets.except;
    timespec none{};
    struct {
      const sigset_t* mask;
      std::size_t size;
    } masked{mask, kKernelMaskSize};
    long ready = kernel(SYS_pselect6, count, &read, sets.write != nullptr ? &write : nullptr,
                        sets.except != nullptr ? &except : nullptr, &none, &masked);
    if (ready < 0) return static_cast<int>(with_errno(ready));
    for (int fd = 0; fd < checked; ++fd) {
      if (!FD_ISSET(fd, sets.read) || FD_ISSET(fd, &read) || !readable_now(fd)) continue;
      FD_SET(fd, &read);
      ++ready;
    }
    if (ready == 0 && !at_once) return 0;
    *sets.read = read;
    if (sets.write != nullptr) *sets.write = write;
    if (sets.except != nullptr) *sets.except = except;
    return static_cast<int>(ready);
  };
  if (count > FD_SETSIZE) {
    // Larger sets than the C library knows: the kernel tells.
    (void)waited.enter();
    const int ready = as_it_is();
    waited.leave();
    return ready;
  }
  if (at_once) return look();
  return wait_for(waited, look, as_it_is);
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int poll(pollfd* fds, nfds_t count, int timeout) {
  using Poll = int(pollfd*, nfds_t, int);
  return poll_for(fds, count, timeout == 0, nullptr,
                  [&] { return real::next<"poll", Poll>()(fds, count, timeout); });
}
int __poll(pollfd* fds, nfds_t count, int timeout) { return poll(fds, count, timeout); }

int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask) {
  using Ppoll = int(pollfd*, nfds_t, const timespec*, const sigset_t*);
  return poll_for(fds, count, is_zero(timeout), mask,
                  [&] { return real::next<"ppoll", Ppoll>()(fds, count, timeout, mask); });
}

int select(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  using Select = int(int, fd_set*, fd_set*, fd_set*, timeval*);
  const bool at_once = !is_no_address(timeout) && timeout->tv_sec == 0 && timeout->tv_usec == 0;
  return select_for(count, {read, write, except}, at_once, nullptr, [&] {
    return real::next<"select", Select>()(count, read, write, except, timeout);
  });
}
int __select(int count, fd_set* read, fd_set* write, fd_set* except, timeval* timeout) {
  return select(count, read, write, except, timeout);
}

int pselect(int count, fd_set* read, fd_set* write, fd_set* except, const timespec* timeout,
            const sigset_t* mask) {
  using Pselect = int(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*);
  return select_for(count, {read, write, except}, is_zero(timeout), mask, [&] {
    return real::next<"pselect", Pselect>()(count, read, write, except, timeout, mask);
  });
}

[[noreturn]] void __chk_fail();

int __poll_chk(pollfd* fds, nfds_t count, int timeout, size_t room) {
  if (room / sizeof *fds < count) __chk_fail();
  return poll(fds, count, timeout);
}
int __ppoll_chk(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t* mask,
                size_t room) {
  if (room / sizeof *fds < count) __chk_fail();
  return ppoll(fds, count, timeout, mask);
}

}  // extern "C"
