// SPDX-License-Identifier: Apache-2.0
#include "preload/connection.hpp"

#include <poll.h>
#include <pthread.h>

#include <cstring>
#include <utility>

#include "preload/address.hpp"
#include "preload/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/log.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/transfer.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

constexpr std::size_t kMostParts = 1024;  // as the kernel: EINVAL beyond
constexpr std::size_t kKernelChunk = 64 * 1024;
constexpr std::size_t kKernelChunkOfUnix = 16 * 1024;  // see ring_bytes_of()
constexpr std::uint32_t kEmptyCallsPerLook = 64;
constexpr std::uint32_t kSendsPerLook = 64;
constexpr std::uint64_t kLookEvery = 20 * kTicksPerMicrosecond;
constexpr std::uint64_t kCheckEvery = 100 * kTicksPerMicrosecond;

ssize_t fail(long negative_errno) noexcept {
  errno = static_cast<int>(-negative_errno);
  return -1;
}

void count(Side& side, bool by_ring, long bytes) noexcept {
  if (side.own().counters == nullptr || bytes <= 0) [[likely]]
    return;
  Counters::Way& way = by_ring ? side.own().counters->ring : side.own().counters->kernel;
  way.bytes.fetch_add(static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  way.messages.fetch_add(1, std::memory_order_relaxed);
}

bool nonblocking(const Side& side, int flags) noexcept {
  return (flags & MSG_DONTWAIT) != 0 || side.nonblocking.load(std::memory_order_relaxed);
}

// The peer has died, or was closed behind its library's back, with bytes of ours unread: the
// kernel would have reset the connection.
bool left_bytes_unread(Side& side) noexcept {
  if (side.reset_told) return false;
  const Guard sending(side.send_lock);
  if (side.out().control == nullptr || side.in().control == nullptr) return false;
  // One that closes a TCP connection resets it itself.
  const std::uint32_t said = side.in().control->sender_said.load(std::memory_order_acquire);
  if (side.kind == Kind::tcp ? said != 0 : said == Direction::kFinished) return false;
  // The end that comes of shutting down is no sign that the peer has died.
  const std::uint32_t finished =
      side.in().control->receiver_finished.load(std::memory_order_relaxed);
  if (finished != 0 && (said & Direction::kClosed) == 0) return false;
  if (side.sender.unread(side.out()) != 0) return true;
  // What was taken back from it at last may have reached the kernel behind its end.
  return side.reclaimed_to != 0 &&
         (side.out().control->tail.load(std::memory_order_acquire) & kLeft) == 0 &&
         side.out().control->kernel_taken.load(std::memory_order_acquire) < side.reclaimed_to;
}

// One end could not give back what it had not read.
bool is_marked_lost(const Ring& ring) noexcept {
  return ring.control != nullptr &&
         ring.control->handback.load(std::memory_order_acquire) == handback::kLost;
}

}  // namespace

bool is_reset(Side& side) noexcept {
  const bool lost = (side.in().control != nullptr && side.receiver.reclaim_unfinished(side.in())) ||
                    is_marked_lost(side.in()) || is_marked_lost(side.out());
  return !side.reset_told && (lost || left_bytes_unread(side));
}

bool peer_has_closed(const Side& side) noexcept {
  const Direction* const in = side.in().control;
  return in != nullptr &&
         (in->sender_said.load(std::memory_order_acquire) & Direction::kClosed) != 0;
}

int take_pending_error(Side& side, int fd) noexcept {
  int error = take_error(side);
  socklen_t size = sizeof error;
  if (error == 0) kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &size);
  const Guard receiving(side.receive_lock);
  if (error == 0 && receiving && peer_has_closed(side) && is_reset(side)) error = ECONNRESET;
  if (error == ECONNRESET) side.reset_told = true;
  return error;
}

namespace {

// Holds the receiver's lock.
ssize_t at_end(Side& side, ssize_t result) noexcept {
  if (result != 0) return result;
  // This very call may have taken it, before it slept.
  if (const int error = take_error(side); error != 0) return fail(-error);
  if (!is_reset(side)) return result;
  side.reset_told = true;
  return fail(-ECONNRESET);
}

// A peer that breaks the protocol is dead to us, and we to it.
ssize_t broken(Side& side, int fd) noexcept {
  if (side.broken_told.exchange(true)) return fail(-ECONNRESET);
  log(LogLevel::warn, "descriptor %d: the peer breaks the protocol", fd);
  const linger now{.l_onoff = 1, .l_linger = 0};
  kernel(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  kernel(SYS_shutdown, fd, SHUT_RDWR);
  note_reason(side, Reason::broken);
  return fail(-ECONNRESET);
}

// Somebody has closed it while a call was without the lock: the connection, or the last descriptor
// of it in this process.
bool is_gone(const Side& side, std::uint32_t generation) noexcept {
  return side.generation.load(std::memory_order_relaxed) != generation ||
         (side.accelerated() && side.out().control == nullptr);
}

// Not of the call.
bool is_of_connection(int error) noexcept {
  constexpr int kOthers[] = {0, EAGAIN, EINTR, EBADF, EFAULT, EINVAL, ENOMEM, ENOBUFS};
  return std::find(std::begin(kOthers), std::end(kOthers), error) == std::end(kOthers);
}

// The peer's doorbell: it gives back what it will not read.
void answer_peer(Side& side, int fd) noexcept {
  const Guard sending(side.send_lock);
  if (sending && side.out().control != nullptr) (void)serve_leaving_peer(side, fd);
}

// A call of the program has brought so many bytes from the kernel. How many of them are its own;
// none: look again. Holds the receiver's lock.
std::size_t came_from_kernel(Side& side, const Call& call, const iovec* parts, std::size_t count,
                             std::size_t raw) noexcept {
  std::size_t useful = raw;
  if (side.in().control != nullptr &&
      side.in().control->doorbell.load(std::memory_order_relaxed) != 0) [[unlikely]]
    useful = without_doorbell(side.receiver, side.in(), parts, count, raw);
  const bool takes = (call.flags & MSG_PEEK) == 0;
  side.receiver.leave_kernel(side.in(), takes ? raw : 0);
  if (useful == raw) return raw;
  answer_peer(side, call.fd);
  std::byte bell;
  if (useful == 0 && !takes &&
      kernel(SYS_recvfrom, call.fd, &bell, 1, MSG_DONTWAIT, nullptr, nullptr) == 1)
    side.receiver.taken_from_kernel(side.in(), 1);
  // The call was full: one more byte, in the doorbell's place.
  Span rest(parts, count);
  iovec last;
  if (takes && call.with == nullptr && rest.left() == raw &&
      (rest.skip(useful), rest.parts(&last, 1, 1)) == 1 &&
      kernel(SYS_recvfrom, call.fd, last.iov_base, 1, MSG_DONTWAIT, nullptr, nullptr) == 1) {
    side.receiver.taken_from_kernel(side.in(), 1);
    ++useful;
  }
  return useful;
}

// kNothing: look again.
ssize_t receive_plainly(Side& side, const Call& call, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  side.receiver.enter_kernel();
  guard.unlock();
  settle_before_sleep();
  ssize_t got = call.as_it_is(call.arguments);
  const int error = errno;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    if (got > 0 && (call.flags & (MSG_OOB | MSG_ERRQUEUE)) == 0) {
      // It may have become accelerated, and even left again, while this call slept.
      got = static_cast<ssize_t>(
          came_from_kernel(side, call, call.parts, call.count, static_cast<std::size_t>(got)));
      if (got == 0) return kNothing;
    } else {
      side.receiver.leave_kernel(side.in(), 0);
      if (got < 0 && error == ECONNRESET) side.reset_told = true;
      const bool wanted_none = Span(call.parts, call.count).left() == 0;
      if (got == 0 && !wanted_none && at_end(side, 0) != 0) return -1;
    }
    guard.unlock();
    if (got > 0 && (call.flags & (MSG_PEEK | MSG_OOB)) == 0) {
      count(side, false, got);
      count_call(call.fd, side);
    }
  }
  errno = error;
  return got;
}

// Sleeps in the kernel, in the program's own call where that is possible. The direction is watched
// and whatever is in the kernel, up to `limit`, is what comes next. kNothing: look again.
ssize_t sleep_in_kernel(Side& side, const Call& call, const Span& to, std::uint64_t limit,
                        bool untouched, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  side.receiver.enter_kernel();
  guard.unlock();
  settle_before_sleep();
  ssize_t got;
  const bool as_it_is = untouched && limit >= to.left() && call.with == nullptr;
  iovec parts[kParts];
  msghdr message{};
  if (as_it_is) {
    got = call.as_it_is(call.arguments);
  } else {
    message.msg_iov = parts;
    message.msg_iovlen = to.parts(parts, kParts, std::min<std::uint64_t>(to.left(), limit));
    if (call.with != nullptr) call.with->ask(message);
    got = real::next<"recvmsg", ssize_t(int, msghdr*, int)>()(call.fd, &message,
                                                              call.flags & ~MSG_WAITALL);
    if (call.with != nullptr && got > 0) call.with->answered(message);
  }
  const int error = errno;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    side.patience.slept();
    if (got > 0) {
      got = static_cast<ssize_t>(came_from_kernel(side, call, as_it_is ? call.parts : parts,
                                                  as_it_is ? call.count : message.msg_iovlen,
                                                  static_cast<std::size_t>(got)));
      // There was nothing but the doorbell.
      if (got == 0) return kNothing;
    } else {
      side.receiver.leave_kernel(side.in(), 0);
    }
    if ((call.flags & MSG_PEEK) == 0) count(side, false, got);
  }
  errno = error;
  return got;
}

// Waits without sleeping; true if there may be something now.
bool stay_awake(Side& side) noexcept {
  const Ring ring = side.in();
  const Ring out = side.out();
  if (ring.control == nullptr || out.control == nullptr) return true;  // closed meanwhile
  const std::uint32_t here = this_processor();
  if (ring.control->receiver_processor.load(std::memory_order_relaxed) != here)
    ring.control->receiver_processor.store(here, std::memory_order_relaxed);
  if (out.control->sender_processor.load(std::memory_order_relaxed) != here)
    out.control->sender_processor.store(here, std::memory_order_relaxed);
  return side.patience.stay_awake(
      [&] {
        return side.receiver.may_have_news(ring) ||
               ring.control->sender_said.load(std::memory_order_relaxed) != 0;
      },
      [&] { return ring.control->sender_processor.load(std::memory_order_relaxed); });
}

bool time_to_look(Side& side, int fd) noexcept {
  const std::uint64_t now = ticks();
  if (++side.empty_calls % kEmptyCallsPerLook != 0 && now - side.looked_at < kLookEvery &&
      !epoll_told_since(fd, side.looked_at))
    return false;
  side.looked_at = now;
  return true;
}

// --- Between calls
//
// A direction may stay unwatched when a call returns only where the next wait for it is seen by the
// library: the program has waited for it before in a receive call, in poll or select, or in an
// epoll set. A program that never did waits in a way of its own, and only the kernel can tell it.

// The peer has taken back what nobody came for: this side waits for a while as if it never looked.
void note_reclaims(Side& side) noexcept {
  constexpr std::uint32_t kLongest = 4096;
  side.reclaims_seen = side.receiver.reclaims();
  side.last_probation = std::min(2 * side.last_probation + 4, kLongest);
  side.probation = side.last_probation;
}

bool may_share_ring(const Side& side) noexcept {
  return !side.receiver.busy() && !side.receiver.gone_for_ever() &&
         // The sender must be there to make use of it.
         side.in().control->sender_processor.load(std::memory_order_relaxed) != 0 &&
         !(side.other_holders_unknown && local_references(side) > 1);
}

bool may_stay_unwatched(Side& side, int fd, bool waits) noexcept {
  if (!may_share_ring(side) || side.stay_watched.load(std::memory_order_relaxed)) return false;
  if (side.reclaims_seen != side.receiver.reclaims()) note_reclaims(side);
  if (side.probation != 0) {
    --side.probation;
    return false;
  }
  if (!is_registered(fd) && !(waits && side.waited) && !side.polled.load(std::memory_order_relaxed))
    return false;
  return epoll_allows_wake_up(fd);
}

// A receive call that does not wait has found nothing. A program that comes again soon waits by
// looking, and is served during its calls.
bool comes_again_soon(Side& side) noexcept {
  constexpr std::uint64_t kSoon = 20 * kTicksPerMicrosecond;
  constexpr std::uint32_t kCalls = 256;
  if (side.busy_calls == 0 && ticks() - side.looked_in_vain < kSoon) side.busy_calls = kCalls;
  if (side.busy_calls == 0) return false;
  --side.busy_calls;
  return true;
}

// The ring is looked at for as long as a system call takes, during the call only.
void look_briefly(Side& side) noexcept {
  constexpr unsigned kLooks = 150;
  const Ring ring = side.in();
  for (unsigned i = 0; i < kLooks; ++i) {
    if (side.receiver.may_have_news(ring) ||
        ring.control->sender_said.load(std::memory_order_relaxed) != 0)
      return;
    relax();
  }
}

// One call of the receive family on an accelerated connection.
class Receiving {
 public:
  Receiving(Side& side, const Call& call, Guard& guard) noexcept
      : side_(side),
        call_(call),
        guard_(guard),
        to_(call.parts, call.count),
        wanted_(to_.left()),
        generation_(side.generation.load(std::memory_order_relaxed)),
        peek_((call.flags & MSG_PEEK) != 0),
        all_((call.flags & MSG_WAITALL) != 0),
        waits_(!nonblocking(side, call.flags)) {}
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;
  ~Receiving() {
    if (borrowed_ && owns_guard_ && side_.in().control != nullptr && !side_.receiver.watched())
      side_.receiver.watch(side_.in());
  }

  ssize_t receive() {
    if (!waits_ && side_.receiver.watched() && comes_again_soon(side_)) {
      unwatch_for_this_call();
      if (borrowed_) look_briefly(side_);
    }
    for (;;) {
      const long got = take();
      if (got > 0 && finished(got)) return total_;
      if (got > 0) continue;
      if (got == 0) {
        // Nothing comes any more: the kernel says so as often as it is asked.
        side_.receiver.watch_for_ever(side_.in());
        return total_ != 0 ? cut_short() : at_end(side_, 0);
      }
      if (got != kNothing) return total_ != 0 ? failed_later(got) : failed(got);
      if (!waits_) {
        if (total_ != 0) return cut_short();
        if (bytes_have_come()) continue;
        if (is_told_of()) return fail(-EAGAIN);
        continue;
      }
      ssize_t result = 0;
      switch (wait(result)) {
        case Outcome::look_again: break;
        case Outcome::took:
          to_.skip(static_cast<std::size_t>(result));
          if (finished(result)) return total_;
          break;
        case Outcome::ended:
          if (total_ == 0) return result;
          if (result < 0 && owns_guard_) keep_error(side_, errno);
          return total_;
      }
    }
  }

 private:
  enum class Outcome : std::uint8_t { look_again, took, ended };

  void unwatch_for_this_call() noexcept {
    if (!may_share_ring(side_)) return;
    side_.receiver.unwatch(side_.in());
    borrowed_ = !side_.receiver.watched();
  }

  // As receive_now(); also what else may have happened.
  long take() {
    const std::uint64_t before = side_.receiver.kernel_taken();
    long got = receive_now(side_.receiver, side_.in(), call_.fd, to_, peek_, call_.with);
    if (side_.in().control->doorbell.load(std::memory_order_relaxed) != 0) [[unlikely]]
      answer_peer(side_, call_.fd);
    if (got == kNothing && !waits_ && !side_.receiver.watched() &&
        (time_to_look(side_, call_.fd) ||
         side_.in().control->sender_said.load(std::memory_order_relaxed) != 0))
      got = look_for_end(side_.receiver, side_.in(), call_.fd);
    if (got > 0 && !peek_ && side_.own().counters != nullptr) {
      const auto by_kernel =
          std::min(got, static_cast<long>(side_.receiver.kernel_taken() - before));
      count(side_, true, got - by_kernel);
      count(side_, false, by_kernel);
    }
    return got;
  }

  bool finished(ssize_t got) noexcept {
    total_ += got;
    stayed_ = false;
    // The kernel brought it, so the sender thinks that this side sleeps; or it was unwatched for
    // this call, and may it stay so?
    if ((side_.receiver.watched() || borrowed_) && may_stay_unwatched(side_, call_.fd, waits_)) {
      if (side_.receiver.watched()) side_.receiver.unwatch(side_.in());
      borrowed_ = false;
    }
    return peek_ || !all_ || static_cast<std::size_t>(total_) == wanted_ ||
           (call_.with != nullptr && call_.with->came);
  }

  // The kernel looks for an error where a unix stream is to fill the call, and says nothing of it.
  ssize_t cut_short() noexcept {
    if (all_ && side_.kind == Kind::unix_stream && peer_has_closed(side_)) side_.reset_told = true;
    return total_;
  }

  ssize_t failed(long error) noexcept {
    if (error == -ECONNRESET) side_.reset_told = true;
    if (error == -ECONNRESET && side_.receiver.broken()) return broken(side_, call_.fd);
    return fail(error);
  }

  ssize_t failed_later(long error) noexcept {
    if (error == -ECONNRESET && all_ && side_.kind == Kind::unix_stream)
      side_.reset_told = true;
    else
      keep_error(side_, static_cast<int>(-error));
    return total_;
  }

  // Bytes that the sender has taken back are on their way through the kernel. The program may have
  // been told of them, so they must not be missing now. False: there are none, or they do not come,
  // which this side bears with a few times.
  bool bytes_have_come() noexcept {
    constexpr std::uint32_t kMostInVain = 3;
    constexpr std::int64_t kLongest = 10'000'000;
    const auto on_their_way = [&] {
      return side_.receiver.reclaim_unfinished(side_.in()) ||
             (side_.receiver.kernel_has_more(side_.in()) && kernel_queued(call_.fd) == 0);
    };
    if (!on_their_way()) {
      // They may have come since this call looked.
      const bool moved = !looked_again_ && (side_.receiver.kernel_has_more(side_.in()) ||
                                            side_.receiver.is_moved(side_.in()));
      looked_again_ = looked_again_ || moved;
      return moved;
    }
    if (side_.waits_in_vain == kMostInVain) return false;
    for (const std::int64_t start = now_ns(); now_ns() - start < kLongest;) {
      for (int i = 0; i < 20; ++i) {
        kernel(SYS_sched_yield);
        if (!on_their_way()) return true;
      }
      // The sender waits for a processor that somebody else has.
      const timespec moment{.tv_sec = 0, .tv_nsec = 50'000};
      kernel(SYS_nanosleep, &moment, nullptr);
    }
    ++side_.waits_in_vain;
    return false;
  }

  // Whether the program will hear of what comes from now on. False: it would not have, and there
  // is something.
  bool is_told_of() noexcept {
    const bool watched = side_.receiver.watched();
    if (!watched && !borrowed_ && may_stay_unwatched(side_, call_.fd, false)) return true;
    side_.looked_in_vain = ticks();
    if (watched) return true;
    borrowed_ = false;
    side_.receiver.watch(side_.in());
    return side_.receiver.next(side_.in()).kind == Receiver::Next::nothing;
  }

  Outcome wait(ssize_t& result) {
    if (!stayed_) {
      stayed_ = true;
      side_.waited = true;
      if (side_.receiver.watched()) unwatch_for_this_call();
      if (!side_.receiver.watched()) {
        guard_.unlock();
        const bool news = stay_awake(side_);
        owns_guard_ = guard_.lock();
        if (!owns_guard_) return ended(result, fail(-EINTR));
        if (is_gone(side_, generation_)) {
          owns_guard_ = false;
          return ended(result, fail(-EBADF));
        }
        if (news) {
          // What ended the wait may be no more than the end of the stream, or of a segment.
          const Receiver::Next next = side_.receiver.next(side_.in());
          if (next.kind == Receiver::Next::ring) stayed_ = false;
          if (next.kind != Receiver::Next::nothing) return Outcome::look_again;
        } else if (side_.patience.interruption() == Interruption::ends) {
          return ended(result, fail(-EINTR));
        }
      }
    }
    if (!side_.receiver.watched()) side_.receiver.watch(side_.in());
    borrowed_ = false;
    const Receiver::Next next = side_.receiver.next(side_.in());
    if (next.kind == Receiver::Next::ring || next.kind == Receiver::Next::broken)
      return Outcome::look_again;
    const bool open = next.kind != Receiver::Next::kernel;
    result =
        sleep_in_kernel(side_, call_, to_, open ? UINT64_MAX : next.bytes, total_ == 0, guard_);
    if (is_gone(side_, generation_)) {
      owns_guard_ = false;
      if (result > 0) total_ += result;
      return ended(result, result == kNothing ? fail(-EBADF) : result);
    }
    if (result == kNothing) return Outcome::look_again;
    if (result > 0) return Outcome::took;
    if (result == 0) side_.receiver.watch_for_ever(side_.in());
    if (result < 0 && errno == ECONNRESET) side_.reset_told = true;
    return ended(result, at_end(side_, result));
  }

  static Outcome ended(ssize_t& result, ssize_t value) noexcept {
    result = value;
    return Outcome::ended;
  }

  Side& side_;
  const Call& call_;
  Guard& guard_;
  Span to_;
  std::size_t wanted_;
  std::uint32_t generation_;
  ssize_t total_ = 0;
  bool peek_;
  bool all_;
  bool waits_;
  bool stayed_ = false;
  bool looked_again_ = false;
  bool borrowed_ = false;  // unwatched for this call only
  bool owns_guard_ = true;
};

// Is the peer still there? A sender that never reads would not notice.
void check_peer(Side& side, int fd) noexcept {
  const std::uint64_t now = ticks();
  if (++side.sends_unchecked < kSendsPerLook && now - side.checked_at < kCheckEvery) return;
  side.sends_unchecked = 0;
  side.checked_at = now;
  const std::uint32_t here = this_processor();
  if (side.out().control->sender_processor.load(std::memory_order_relaxed) != here)
    side.out().control->sender_processor.store(here, std::memory_order_relaxed);
  pollfd look{.fd = fd, .events = POLLRDHUP, .revents = 0};
  const timespec none{};
  timespec time = none;
  if (kernel(SYS_ppoll, &look, 1, &time, nullptr, 0) > 0 &&
      (look.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0)
    side.sender.leave_ring(side.out());  // the kernel knows what to say
}

// The ring is full: waits a little while the receiver makes room. Without the lock meanwhile.
bool wait_for_room(Side& side, bool briefly, Guard& guard) noexcept {
  const Ring ring = side.out();
  const std::uint64_t before = ring.control->head.load(std::memory_order_relaxed);
  guard.unlock();
  const bool together =
      ring.control->receiver_processor.load(std::memory_order_relaxed) == this_processor();
  const auto moved = [&] {
    return ring.control->head.load(std::memory_order_relaxed) != before ||
           (ring.control->tail.load(std::memory_order_relaxed) & kFlags) != 0;
  };
  bool room = false;
  if (together) {
    for (unsigned i = 0; i < (briefly ? 1 : 4) && !(room = moved()); ++i) kernel(SYS_sched_yield);
  } else {
    const unsigned looks = briefly ? 100 : 2000;
    for (unsigned i = 0; i < looks && !(room = moved()); ++i) relax();
  }
  return guard.lock() && (room || moved());
}

// Waits for a peer that is leaving the ring, if it is; then holds a place among those who send
// through the kernel. Zero, or what the call returns.
ssize_t enter_kernel(Side& side, const Call& call) noexcept {
  while (!side.sender.enter_kernel(side.out())) {
    if (nonblocking(side, call.flags)) {
      if (!serve_leaving_peer(side, call.fd)) return fail(-EAGAIN);
    } else if (!wait_for_leaving_peer(side, call.fd)) {
      return fail(-EINTR);
    }
  }
  return 0;
}

// Newer bytes must not come before those of the ring there, so these go first. False: the kernel
// has no room for all.
bool leave_ring_for_kernel(Side& side, int fd) noexcept {
  const bool can_be_sent = reclaim(side, fd, true);
  if (side.sender.in_kernel()) return true;
  const Ring& ring = side.out();
  if (!can_be_sent || ring.control->receiver_finished.load(std::memory_order_relaxed) != 0)
    side.sender.leave_ring(ring);  // the kernel says why
  else if (side.sender.unread(ring) != 0 && !side.sender.broken())
    return false;
  else
    side.sender.use_kernel(ring);
  return true;
}

// Until the kernel has room, as long as a send would wait for it. Zero, or what the call returns.
ssize_t wait_for_kernel(Side& side, const Call& call, Guard& guard) {
  if (nonblocking(side, call.flags)) return fail(-EAGAIN);
  timeval limit{};
  socklen_t size = sizeof limit;
  kernel(SYS_getsockopt, call.fd, SOL_SOCKET, SO_SNDTIMEO, &limit, &size);
  const std::int64_t longest = limit.tv_sec * 1'000'000'000 + limit.tv_usec * 1'000;
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  guard.unlock();
  settle_before_sleep();
  ssize_t result = 0;
  const std::int64_t start = now_ns();
  for (bool room = false; !room && result == 0;) {
    ::pthread_testcancel();
    const HeldSignals held;
    pollfd look{.fd = call.fd, .events = POLLOUT, .revents = 0};
    timespec moment{.tv_sec = 0, .tv_nsec = 2'000'000};
    room = kernel(SYS_ppoll, &look, 1, &moment, nullptr, 0) > 0;
    if (held.interruption() == Interruption::ends)
      result = fail(-EINTR);
    else if (longest != 0 && now_ns() - start > longest)
      result = fail(-EAGAIN);
  }
  if (!guard.lock()) return fail(-EINTR);
  return is_gone(side, generation) ? fail(-EBADF) : result;
}

std::size_t kernel_chunk(const Side& side) noexcept {
  return side.kind == Kind::tcp ? kKernelChunk : kKernelChunkOfUnix;
}

ssize_t send_through_kernel(Side& side, const Call& call, const Span& from, bool untouched,
                            Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  const bool wait = !nonblocking(side, call.flags);
  // In pieces, so that the ring is used as soon as the receiver has woken up.
  const std::size_t size = wait && !side.sender.gone_for_ever()
                               ? std::min(from.left(), kernel_chunk(side))
                               : from.left();
  if (const ssize_t refused = enter_kernel(side, call); refused != 0) return refused;
  guard.unlock();
  if (wait) settle_before_sleep();
  ssize_t sent;
  if (untouched && size == from.left()) {
    sent = call.as_it_is(call.arguments);
  } else {
    iovec parts[kParts];
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = from.parts(parts, kParts, size);
    // A broken pipe raises a signal only where nothing has been sent.
    sent = real::next<"sendmsg", ssize_t(int, const msghdr*, int)>()(
        call.fd, &message, call.flags | (untouched ? 0 : MSG_NOSIGNAL));
  }
  const int error = errno;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation)
    side.sender.leave_kernel(side.out(), sent > 0 ? static_cast<std::size_t>(sent) : 0);
  else
    sent = sent < 0 ? sent : -1;
  count(side, false, sent);
  errno = error;
  return sent;
}

ssize_t send_accelerated(Side& side, const Call& call, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  Span from(call.parts, call.count);
  const std::size_t wanted = from.left();
  for (unsigned waits = 0;;) {
    const auto sent = [&] { return static_cast<ssize_t>(wanted - from.left()); };
    if (is_gone(side, generation)) return sent() != 0 ? sent() : fail(-EBADF);
    switch (side.sender.way(side.out())) {
      case Sender::Way::broken: return broken(side, call.fd);
      case Sender::Way::ring: {
        check_peer(side, call.fd);
        if (side.sender.in_kernel()) continue;
        const std::size_t put = side.sender.put(side.out(), from);
        count(side, true, static_cast<long>(put));
        if (put != 0) note_put(side, call.fd);
        if (from.left() == 0) return sent();
        if (put != 0) {
          waits = 0;
          continue;
        }
        if (side.sender.broken()) continue;
        if (!side.sender.closed(side.out())) {
          if (wait_for_room(side, nonblocking(side, call.flags), guard) && ++waits < 1000) continue;
          if (is_gone(side, generation)) continue;
        }
        if (!leave_ring_for_kernel(side, call.fd)) {
          const ssize_t waited = wait_for_kernel(side, call, guard);
          if (waited != 0) return sent() != 0 ? sent() : waited;
        }
        // With nothing sent it is this call that tells.
        if (side.kind == Kind::tcp && side.error_kept.load(std::memory_order_relaxed) != 0) {
          if (sent() != 0) return sent();
          if (const int error = take_error(side); error != 0) return fail(-error);
        }
        continue;
      }
      case Sender::Way::kernel: break;
    }
    const std::size_t before = from.left();
    const ssize_t now = send_through_kernel(side, call, from, sent() == 0, guard);
    if (now <= 0) return sent() != 0 ? sent() : now;
    from.skip(static_cast<std::size_t>(now));
    if (from.left() == 0) return sent();
    // Less than asked for: the kernel has a reason to stop.
    if (nonblocking(side, call.flags) ||
        static_cast<std::size_t>(now) < std::min(before, kernel_chunk(side)))
      return sent();
  }
}

// With a pointer that the kernel refuses: it says so as soon as there is something to be copied.
ssize_t receive_badly(Side& side, const Call& call, Guard& guard) {
  if (side.in().control != nullptr) {
    if (!side.receiver.watched()) side.receiver.watch(side.in());
    if (side.receiver.next(side.in()).kind == Receiver::Next::ring) return fail(-EFAULT);
  }
  return receive_plainly(side, call, guard);
}

}  // namespace

void keep_error(Side& side, int error) noexcept {
  if (is_of_connection(error)) side.error_kept.store(error, std::memory_order_relaxed);
}

int take_error(Side& side) noexcept {
  if (side.error_kept.load(std::memory_order_relaxed) == 0) [[likely]]
    return 0;
  const int error = side.error_kept.exchange(0, std::memory_order_relaxed);
  if (error == ECONNRESET) side.reset_told = true;
  return error;
}

bool reclaim(Side& side, int fd, bool always) noexcept {
  const std::uint64_t before = side.sender.kernel_sent();
  const long error = reclaim_now(side.sender, side.out(), fd, always);
  // A broken pipe is told of each time.
  if (error != -EPIPE) keep_error(side, static_cast<int>(-error));
  if (side.sender.kernel_sent() != before) side.reclaimed_to = side.sender.kernel_sent();
  return !is_of_connection(static_cast<int>(-error));
}

void wake_up(Side& side, int fd) noexcept {
  if (may_stay_unwatched(side, fd, true)) side.receiver.unwatch(side.in());
}

void set_nonblocking(Side& side, bool on) noexcept {
  if (side.nonblocking.exchange(on, std::memory_order_relaxed) == on) return;
  // It waits in another way from now on, and nobody knows in which.
  const Guard guard(side.receive_lock);
  side.waited = false;
  if (guard && side.in().control != nullptr && !side.receiver.watched())
    side.receiver.watch(side.in());
}

bool ring_readable(Side& side) noexcept {
  const Guard guard(side.receive_lock);
  if (!guard || side.in().control == nullptr) return false;
  const Receiver::Next next = side.receiver.next(side.in());
  return next.kind == Receiver::Next::ring || next.kind == Receiver::Next::broken;
}

namespace {

bool has_bytes(Side& side, int fd) noexcept {
  return (side.in().control != nullptr &&
          side.receiver.next(side.in()).kind == Receiver::Next::ring) ||
         kernel_queued(fd) > 0;
}

// A call for no bytes: it tells of an error, if nothing else is there.
ssize_t receive_nothing(Side& side, const Call& call, Guard& guard) {
  if (side.receiver.next(side.in()).kind == Receiver::Next::ring) return 0;
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  guard.unlock();
  settle_before_sleep();
  const ssize_t got = call.as_it_is(call.arguments);
  const int error = errno;
  if (guard.lock() && !is_gone(side, generation)) {
    if (got < 0 && error == ECONNRESET) side.reset_told = true;
    if (got == 0 && peer_has_closed(side) && !has_bytes(side, call.fd)) return at_end(side, 0);
  }
  errno = error;
  return got;
}

// kNothing: look again.
ssize_t receive_once(Side& side, const Call& call) {
  Guard guard(side.receive_lock);
  if (!guard) return fail(-EINTR);
  // Bytes come before an error.
  if (side.error_kept.load(std::memory_order_relaxed) != 0 && !has_bytes(side, call.fd))
    if (const int error = take_error(side); error != 0) return fail(-error);
  if (has_bad_part(call.parts, call.count)) [[unlikely]]
    return receive_badly(side, call, guard);
  if (side.in().control == nullptr || side.receiver.has_left() ||
      (call.flags & (MSG_OOB | MSG_ERRQUEUE)) != 0)
    return receive_plainly(side, call, guard);
  if (call.count > kMostParts) return fail(-EINVAL);
  if (Span(call.parts, call.count).left() == 0) {
    return receive_nothing(side, call, guard);
  }
  return Receiving(side, call, guard).receive();
}

}  // namespace

ssize_t receive_from(Side& side, const Call& call) noexcept(false) {
  for (;;) {
    const ssize_t got = receive_once(side, call);
    if (got != kNothing) return got;
  }
}

ssize_t splice_from_kernel(Side& side, const Call& call) noexcept(false) {
  Guard guard(side.receive_lock);
  if (!guard) return fail(-EINTR);
  if (side.in().control != nullptr) side.receiver.watch_for_ever(side.in());
  return receive_plainly(side, call, guard);
}

ssize_t send_by_kernel(Side& side, const Call& call, Afterwards afterwards) noexcept(false) {
  Guard guard(side.send_lock);
  if (!guard) return fail(-EINTR);
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  if (side.out().control != nullptr) {
    while (!leave_ring_for_kernel(side, call.fd))
      if (const ssize_t waited = wait_for_kernel(side, call, guard); waited != 0) return waited;
    if (side.kind == Kind::tcp)
      if (const int error = take_error(side); error != 0) return fail(-error);
    if (afterwards == Afterwards::kernel) side.sender.leave_ring(side.out());
  }
  if (const ssize_t refused = enter_kernel(side, call); refused != 0) return refused;
  guard.unlock();
  settle_before_sleep();
  const ssize_t sent = call.as_it_is(call.arguments);
  const int error = errno;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    side.sender.leave_kernel(side.out(), sent > 0 ? static_cast<std::size_t>(sent) : 0);
    if (afterwards == Afterwards::ring_when_taken) side.sender.stay_in_kernel_until_taken();
    const bool candidate = side.out().control == nullptr;
    guard.unlock();
    count(side, false, sent);
    if (sent > 0 && candidate) count_call(call.fd, side);
  }
  errno = error;
  return sent;
}

ssize_t send_to(Side& side, const Call& call) noexcept(false) {
  // A unix stream tells who sends of a broken pipe only.
  if (side.kind == Kind::tcp)
    if (const int error = take_error(side); error != 0) [[unlikely]]
      return fail(-error);
  if (has_bad_part(call.parts, call.count)) [[unlikely]]
    return send_by_kernel(side, call, Afterwards::ring);
  // What is urgent stands at a place in the kernel's stream, and what is not copied stays there.
  constexpr int kKernelOnly = MSG_OOB | MSG_ZEROCOPY | MSG_FASTOPEN;
  if ((call.flags & kKernelOnly) != 0) {
    if ((call.flags & MSG_OOB) != 0) note_reason(side, Reason::urgent);
    return send_by_kernel(side, call, Afterwards::kernel);
  }
  {
    Guard guard(side.send_lock);
    if (!guard) return fail(-EINTR);
    if (side.out().control != nullptr) {
      if (call.count > kMostParts) return fail(-EINVAL);
      if (Span(call.parts, call.count).left() != 0) return send_accelerated(side, call, guard);
    }
  }
  return send_by_kernel(side, call, Afterwards::ring);
}

}  // namespace farcall::preload
