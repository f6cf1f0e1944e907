// SPDX-License-Identifier: Apache-2.0
//
// Calls of a program that receive.
#include <poll.h>

#include <cstring>
#include <utility>

#include "preload/address.hpp"
#include "preload/between_calls.hpp"
#include "preload/call_result.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/packet.hpp"
#include "preload/packet_receive.hpp"
#include "preload/real.hpp"
#include "preload/receive_kernel.hpp"
#include "preload/settle.hpp"
#include "preload/transfer.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

// Sleeps in the kernel, in the program's own call where that is possible. The direction is watched
// and whatever is in the kernel, up to `limit`, is what comes next. kNothing: look again. `cut`:
// the kernel has returned less than all, and waits for no more.
ssize_t sleep_in_kernel(Side& side, const Call& call, const Span& to, std::uint64_t limit,
                        bool untouched, bool& cut, Guard& guard) {
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  side.receiver.enter_kernel();
  note_sleep(side);
  guard.unlock();
  settle_before_sleep();
  const std::int64_t start = (call.flags & MSG_WAITALL) != 0 ? monotonic_ns() : 0;
  ssize_t got;
  const bool libc_call = limit >= to.left() && call.with == nullptr;
  iovec parts[kParts];
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(call.parts);
  message.msg_iovlen = call.count;
  if (!untouched) {
    got = sleep_for_rest(call, POLLIN) ? kNothing : -1;
  } else if (libc_call) {
    got = call.libc_call(call.arguments);
    cut = got > 0 && static_cast<std::size_t>(got) < to.left();
  } else {
    if (limit < to.left()) {
      message.msg_iov = parts;
      message.msg_iovlen = to.parts(parts, kParts, limit);
    }
    if (call.with != nullptr) call.with->ask(message);
    got = real::next<"recvmsg", ssize_t(int, msghdr*, int)>()(call.fd, &message,
                                                              call.flags & ~MSG_WAITALL);
    if (call.with != nullptr && got > 0) call.with->answered(message);
  }
  const int error = errno;
  if (start != 0 && untouched) call.slept += monotonic_ns() - start;
  if (guard.lock() && side.generation.load(std::memory_order_relaxed) == generation) {
    note_awake(side);
    if (got > 0) {
      got = static_cast<ssize_t>(came_from_kernel(side, call, message.msg_iov, message.msg_iovlen,
                                                  static_cast<std::size_t>(got)));
      // There was nothing but the doorbell.
      if (got == 0) return kNothing;
    } else {
      side.receiver.leave_kernel(side.in(), 0);
    }
    if (untouched && (call.flags & MSG_PEEK) == 0)
      count_received(side, false, got, {call.parts, call.count, to.left()});
  }
  errno = error;
  return got;
}

// Waits without sleeping; ready if there may be something now.
Stayed stay_awake(Side& side) noexcept {
  const Ring ring = side.in();
  const Ring out = side.out();
  if (ring.control == nullptr || out.control == nullptr) return {true};  // closed meanwhile
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
        waits_(!nonblocking(side, call.flags)),
        may_restart_(!call.is_rest) {}
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;
  ~Receiving() {
    if (!lent_ || !owns_guard_ || side_.in().control == nullptr) return;
    if (borrowed_ && !side_.receiver.watched()) side_.receiver.watch(side_.in());
    if (side_.receiver.watched() && is_registered(call_.fd) && side_.receiver.held(side_.in()) != 0)
      epoll_tell_of_rest(call_.fd);
  }

  ssize_t receive() {
    if (!waits_ && side_.receiver.watched() && waits_by_looking(side_)) {
      unwatch_for_this_call();
      if (borrowed_) look_briefly(side_);
    }
    if (side_.has_messages() && is_reset_first()) return failed(-ECONNRESET);
    for (;;) {
      const long got = take();
      if (got == kMessage) return message_came();
      if (got > 0) {
        note_taken(got);
        if (is_complete()) return total_;
        continue;
      }
      if (got == 0) {
        // Nothing comes any more: the kernel says so as often as it is asked.
        side_.receiver.watch_for_ever(side_.in());
        return total_ != 0 ? cut_short() : at_end(side_, call_.fd, 0);
      }
      if (got != kNothing) return total_ != 0 ? failed_later(got) : failed(got);
      if (!waits_) {
        if (total_ != 0) return cut_short();
        if (bytes_have_come()) continue;
        if (is_told_of()) return fail(-EAGAIN);
        continue;
      }
      ssize_t result = 0;
      bool cut = false;
      switch (wait(result, cut)) {
        case AfterLook::look_again: break;
        case AfterLook::message: return message_came();
        case AfterLook::took:
          to_.skip(static_cast<std::size_t>(result));
          note_taken(result);
          if (is_complete()) return total_;
          if (cut) waits_ = false;
          break;
        case AfterLook::ended:
          if (total_ == 0) return result;
          if (result < 0 && owns_guard_) keep_error(side_, errno);
          return total_;
      }
    }
  }

 private:
  enum class AfterLook : std::uint8_t { look_again, took, message, ended };

  // Of packets a reset is told first, whether the kernel knows of it or only this library. Who asks
  // takes the kernel's word away: it is told once.
  bool is_reset_first() noexcept {
    if (side_.reset_told || !(peer_has_closed(side_) || has_left_messages())) return false;
    const bool left_unread = is_reset(side_, call_.fd);
    int error = 0;
    socklen_t size = sizeof error;
    kernel(SYS_getsockopt, call_.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0 && error != ECONNRESET) keep_error(side_, error);
    return left_unread || error == ECONNRESET;
  }

  // It is gone without a word, with messages of this side unread. The kernel is asked now and then,
  // where take() does not do so; and that does not keep take() from asking in the next call, which
  // may find nothing but the end.
  bool has_left_messages() noexcept {
    const Direction* const out = side_.out().control;
    if (out == nullptr || !(side_.receiver.watched() || side_.receiver.may_have_news(side_.in())))
      return false;
    const std::uint64_t now = now_ticks();
    if (!is_old(side_.looked_for_reset_at, now, call_.fd)) return false;
    side_.looked_for_reset_at = now;
    const std::uint64_t sent = out->tail.load(std::memory_order_relaxed) & ~kFlags;
    const std::uint64_t taken = out->head.load(std::memory_order_relaxed) & ~kReclaiming;
    const bool unread = sent != taken || out->kernel_sent.load(std::memory_order_relaxed) !=
                                             out->kernel_taken.load(std::memory_order_relaxed);
    return unread && peer_is_gone(side_, call_.fd);
  }

  void unwatch_for_this_call() noexcept {
    if (!may_share_ring(side_)) return;
    side_.receiver.unwatch(side_.in());
    borrowed_ = !side_.receiver.watched();
    lent_ = lent_ || borrowed_;
  }

  long take_what_is_there() noexcept {
    Receiver& receiver = side_.receiver;
    if (side_.has_messages())
      return receive_message_now(receiver, side_.in(), call_.fd, call_.parts, call_.count, peek_,
                                 call_.with, length_);
    return receive_now(receiver, side_.in(), call_.fd, to_, peek_, call_.with);
  }

  // The same; also what else may have happened.
  long take() {
    const std::uint64_t before = side_.receiver.kernel_taken();
    long got = take_what_is_there();
    if (side_.in().control->doorbell.load(std::memory_order_relaxed) != 0) [[unlikely]]
      answer_leaving_peer(side_, call_.fd);
    if (got == kNothing && !waits_ && !side_.receiver.watched() &&
        (time_to_look(side_, call_.fd) ||
         side_.in().control->sender_said.load(std::memory_order_relaxed) != 0))
      got = side_.has_messages() ? look_for_end_of_messages(side_.receiver, side_.in(), call_.fd)
                                 : look_for_end(side_.receiver, side_.in(), call_.fd);
    // A peer that died may have left bytes which only that brings.
    if (got == 0 && side_.receiver.reclaim_unfinished(side_.in())) [[unlikely]]
      got = take_what_is_there();
    if (got == kMessage && !peek_)
      count_received(side_, side_.receiver.kernel_taken() == before, static_cast<long>(length_),
                     {call_.parts, call_.count, SIZE_MAX});
    if (got > 0 && !peek_) {
      const auto by_kernel =
          std::min(got, static_cast<long>(side_.receiver.kernel_taken() - before));
      const auto wanted = static_cast<std::size_t>(got) + to_.left();
      count_received(side_, true, got - by_kernel, {call_.parts, call_.count, wanted});
      count_received(side_, false, by_kernel,
                     {call_.parts, call_.count, to_.left() + static_cast<std::size_t>(by_kernel)});
    }
    return got;
  }

  ssize_t message_came() noexcept {
    if (owns_guard_) note_taken(0);
    return message_result(call_, length_);
  }

  void note_taken(ssize_t got) noexcept {
    total_ += got;
    may_restart_ = may_restart_ && total_ == 0;
    stayed_ = false;
    note_success(side_);
    // The kernel brought it, so the sender thinks that this side sleeps; or it was unwatched for
    // this call, and may it stay so? Where others compete that is tried elsewhere, now and then.
    if ((side_.receiver.watched() || borrowed_) && !others_compete(side_) &&
        may_stay_unwatched(side_, call_.fd, waits_)) {
      if (side_.receiver.watched()) side_.receiver.unwatch(side_.in());
      borrowed_ = false;
    }
  }

  // Whether the call returns what it has.
  [[nodiscard]] bool is_complete() const noexcept {
    return peek_ || !all_ || static_cast<std::size_t>(total_) == wanted_ ||
           (call_.with != nullptr && call_.with->came) || is_at_urgent_byte(side_, call_.fd);
  }

  // The kernel looks for an error where a unix stream is to fill the call, and says nothing of it.
  ssize_t cut_short() noexcept {
    if (all_ && side_.kind == Kind::unix_stream && peer_has_closed(side_)) side_.reset_told = true;
    return total_;
  }

  // The kernel refuses it from here on, memory would not.
  void stop_sending() noexcept {
    const Guard sending(side_.send_lock);
    if (sending && side_.out().control != nullptr) side_.sender.leave_ring(side_.out());
  }

  ssize_t failed(long error) noexcept {
    if (error == -ECONNRESET && side_.receiver.broken()) {
      side_.reset_told = true;
      const ssize_t result = broken(side_, call_.fd);
      stop_sending();
      errno = ECONNRESET;
      return result;
    }
    return fail(-told_by_kernel(side_, call_.fd, static_cast<int>(-error)));
  }

  ssize_t failed_later(long error) noexcept {
    if (error == -ECONNRESET && all_ && side_.kind == Kind::unix_stream)
      side_.reset_told = true;
    else
      keep_error(side_, static_cast<int>(-error));
    return total_;
  }

  bool nothing_queued() const noexcept {
    return side_.has_messages() ? !kernel_readable(call_.fd) : kernel_queued(call_.fd) == 0;
  }

  // Bytes that the sender has taken back are on their way through the kernel. The program may have
  // been told of them, so they must not be missing now. False: there are none, or they do not come,
  // which this side bears with a few times.
  bool bytes_have_come() noexcept {
    constexpr std::uint32_t kMostInVain = 3;
    constexpr std::int64_t kLongest = 10'000'000;
    const auto on_their_way = [&] {
      return side_.receiver.reclaim_unfinished(side_.in()) ||
             (side_.receiver.kernel_has_more(side_.in()) && nothing_queued());
    };
    if (!on_their_way()) {
      // They may have come since this call looked.
      const bool moved = !looked_again_ && (side_.receiver.kernel_has_more(side_.in()) ||
                                            side_.receiver.is_moved(side_.in()));
      looked_again_ = looked_again_ || moved;
      return moved;
    }
    if (side_.waits_in_vain == kMostInVain) return false;
    for (const std::int64_t start = monotonic_ns(); monotonic_ns() - start < kLongest;) {
      // Beside programs that compute each turn that is given away is lost for milliseconds.
      for (int i = 0; i < 20 && !others_compete(side_); ++i) {
        give_turn();
        if (!on_their_way()) return true;
      }
      // The sender waits for a processor that somebody else has.
      const timespec moment{.tv_sec = 0, .tv_nsec = 50'000};
      kernel(SYS_nanosleep, &moment, nullptr);
      if (!on_their_way()) return true;
    }
    ++side_.waits_in_vain;
    return false;
  }

  // Whether the program will hear of what comes from now on. False: it would not have, and there
  // is something.
  bool is_told_of() noexcept {
    const bool watched = side_.receiver.watched();
    if (!watched && !borrowed_ && may_stay_unwatched(side_, call_.fd, false)) return true;
    note_look_in_vain(side_);
    if (watched) return true;
    borrowed_ = false;
    side_.receiver.watch(side_.in());
    return side_.receiver.next(side_.in()).kind == Receiver::Next::nothing;
  }

  AfterLook wait(ssize_t& result, bool& cut) {
    if (!stayed_) {
      stayed_ = true;
      side_.waited = true;
      if (side_.receiver.watched() && !others_compete(side_)) unwatch_for_this_call();
      if (!side_.receiver.watched()) {
        guard_.unlock();
        const Stayed stayed = stay_awake(side_);
        note_spun(side_);
        owns_guard_ = guard_.lock();
        if (!owns_guard_) return ended(result, fail(-EINTR));
        if (is_gone(side_, generation_)) {
          owns_guard_ = false;
          return ended(result, fail(-EBADF));
        }
        if (stayed) {
          // What ended the wait may be no more than the end of the stream, or of a segment.
          const Receiver::Next next = side_.receiver.next(side_.in());
          if (next.kind == Receiver::Next::ring) stayed_ = false;
          if (next.kind != Receiver::Next::nothing) return AfterLook::look_again;
        } else if (ends_receive(call_.fd, stayed.interruption, !may_restart_)) {
          return ended(result, fail(-EINTR));
        }
      }
    }
    if (!side_.receiver.watched()) side_.receiver.watch(side_.in());
    borrowed_ = false;
    const Receiver::Next next = side_.receiver.next(side_.in());
    if (next.kind == Receiver::Next::ring || next.kind == Receiver::Next::broken)
      return AfterLook::look_again;
    const bool open = next.kind != Receiver::Next::kernel;
    // A thread that is cancelled in its sleep holds no lock.
    const bool lent = std::exchange(lent_, false);
    result = side_.has_messages()
                 ? sleep_for_message(side_, call_, length_, guard_)
                 : sleep_in_kernel(side_, call_, to_, open ? UINT64_MAX : next.bytes, may_restart_,
                                   cut, guard_);
    lent_ = lent;
    if (result == kMessage) {
      owns_guard_ = !is_gone(side_, generation_);
      return AfterLook::message;
    }
    if (is_gone(side_, generation_)) {
      owns_guard_ = false;
      if (result > 0) total_ += result;
      return ended(result, result == kNothing ? fail(-EBADF) : result);
    }
    if (result == kNothing || (result == 0 && side_.receiver.reclaim_unfinished(side_.in())))
      return AfterLook::look_again;
    if (result > 0) return AfterLook::took;
    if (result == 0) side_.receiver.watch_for_ever(side_.in());
    if (result < 0) errno = told_by_kernel(side_, call_.fd, errno);
    return ended(result, at_end(side_, call_.fd, result));
  }

  static AfterLook ended(ssize_t& result, ssize_t value) noexcept {
    result = value;
    return AfterLook::ended;
  }

  Side& side_;
  const Call& call_;
  Guard& guard_;
  Span to_;
  std::size_t wanted_;
  std::uint32_t generation_;
  ssize_t total_ = 0;
  std::size_t length_ = 0;  // of a message
  bool peek_;
  bool all_;
  bool waits_;
  bool may_restart_;  // nothing has been done yet
  bool stayed_ = false;
  bool looked_again_ = false;
  bool borrowed_ = false;  // unwatched for this call only
  bool lent_ = false;      // it has been, so bytes may have come of which nobody is told
  bool owns_guard_ = true;
};

// With a pointer that the kernel refuses: it says so as soon as there is something to be copied.
ssize_t receive_with_bad_pointer(Side& side, const Call& call, Guard& guard) {
  if (side.in().control != nullptr) {
    if (!side.receiver.watched()) side.receiver.watch(side.in());
    if (side.receiver.next(side.in()).kind == Receiver::Next::ring) return fail(-EFAULT);
  }
  return receive_plainly(side, call, guard);
}

// A call for no bytes: it tells of an error, if nothing else is there.
ssize_t receive_nothing(Side& side, const Call& call, Guard& guard) {
  if (!side.receiver.watched()) side.receiver.watch(side.in());
  if (side.receiver.next(side.in()).kind == Receiver::Next::ring) return 0;
  const std::uint32_t generation = side.generation.load(std::memory_order_relaxed);
  guard.unlock();
  settle_before_sleep();
  const ssize_t got = call.libc_call(call.arguments);
  const int error = errno;
  if (guard.lock() && !is_gone(side, generation)) {
    if (got < 0 && error == ECONNRESET) side.reset_told = true;
    if (got == 0 && peer_is_gone(side, call.fd) && !has_bytes(side, call.fd))
      return at_end(side, call.fd, 0);
  }
  errno = error;
  return got;
}

// kNothing: look again.
ssize_t receive_once(Side& side, const Call& call) {
  Guard guard(side.receive_lock);
  if (!guard) return fail(-EINTR);
  if (is_elsewhere(side, call)) [[unlikely]]
    return call_elsewhere(call, guard);
  // Bytes come before an error, messages behind it.
  if (side.error_kept.load(std::memory_order_relaxed) != 0 &&
      (side.has_messages() || !has_bytes(side, call.fd)))
    if (const int error = take_error_to_receive(side); error != 0) return fail(-error);
  if (throws_away(side, call)) [[unlikely]]
    return kThrowsAway;
  if (has_bad_part(call.parts, call.count)) [[unlikely]]
    return receive_with_bad_pointer(side, call, guard);
  if (side.in().control == nullptr || side.receiver.has_left() ||
      (call.flags & (MSG_OOB | MSG_ERRQUEUE)) != 0)
    return receive_plainly(side, call, guard);
  if (call.count > kMostParts) return fail(-EINVAL);
  if (Span(call.parts, call.count).left() == 0 && !side.has_messages())
    return receive_nothing(side, call, guard);
  if (is_left_to_kernel(side, call)) {
    const ssize_t got = receive_directly(side, call, guard);
    if (got != kNothing) return got;
  }
  return Receiving(side, call, guard).receive();
}

}  // namespace

void wake_up(Side& side, int fd) noexcept {
  if (may_stay_unwatched(side, fd, true)) side.receiver.unwatch(side.in());
}

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

}  // namespace farcall::preload
