// SPDX-License-Identifier: Apache-2.0
#include "preload/handback.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "preload/call_result.hpp"
#include "preload/collected.hpp"
#include "preload/connection.hpp"
#include "preload/log.hpp"
#include "preload/packet.hpp"
#include "preload/peer_socket.hpp"
#include "preload/privilege.hpp"
#include "preload/proof.hpp"
#include "preload/transfer.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
// How long the peer is left to answer by itself, how long one that leaves waits at most for each of
// its answers, how long a sender waits for one that leaves, and how long it waits with closing for
// that.
constexpr std::int64_t kBeforeBorrowing = 5 * kMillisecond;
constexpr std::int64_t kLongest = 3'000 * kMillisecond;
constexpr std::int64_t kLongestForLeaving = 2 * kLongest;
constexpr std::int64_t kLongestBeforeClosing = 1'000 * kMillisecond;
// What anybody has for coming to an end, whatever others have wasted.
constexpr std::int64_t kMoment = 20 * kMillisecond;

constinit PatienceWithPeers with_closing(kLongestBeforeClosing, 2 * kLongestBeforeClosing, kMoment);
constinit PatienceWithPeers with_leaving(kLongest, kLongest, 5 * kMoment);

bool pause() noexcept {
  const timespec moment{.tv_sec = 0, .tv_nsec = 50'000};
  return kernel(SYS_nanosleep, &moment, nullptr) != -EINTR;
}

// Both ends learn that bytes of `direction` are missing. The kernel resets TCP; of unix streams it
// tells the end, and the libraries tell why.
void reset(Side& side, int fd, Direction& direction) noexcept {
  direction.handback.lose();
  if (is_unix(side.kind)) {
    keep_error(side, ECONNRESET);
    kernel(SYS_shutdown, fd, SHUT_RDWR);
    return;
  }
  const sockaddr nobody{.sa_family = AF_UNSPEC, .sa_data = {}};
  kernel(SYS_connect, fd, &nobody, sizeof nobody);
}

// As much as the kernel takes of what lies in `memory` from `from` to `to`; returns how much.
std::size_t send_now(int fd, const Ring& memory, std::size_t from, std::size_t to,
                     bool messages) noexcept {
  if (messages) return static_cast<std::size_t>(send_messages(fd, memory, from, to - from).space);
  const iovec part{.iov_base = memory.bytes + from, .iov_len = to - from};
  Span left(&part, 1);
  for (long sent = 1; left.left() != 0 && sent > 0;) {
    sent = kernel_send(fd, left, left.left(), MSG_NOSIGNAL);
    if (sent > 0) left.skip(static_cast<std::size_t>(sent));
  }
  return to - from - left.left();
}

// The peer may sleep in the kernel. One byte wakes it, which its library takes out again. Bytes
// that it has not read do so as well; and from behind them, or behind a doorbell that is under way,
// the one could not be taken out once the peer leaves. False: not now.
bool ring_doorbell(Side& side, int fd) noexcept {
  const Guard guard(side.send_lock);
  if (side.out().control == nullptr || side.sender.busy()) return false;
  if (side.out().control->kernel_taken.load(std::memory_order_acquire) < side.sender.kernel_sent())
    return false;
  if (!side.sender.enter_kernel(side.out())) return false;
  side.out().control->doorbell.store(side.sender.kernel_sent() + 1, std::memory_order_seq_cst);
  // A peer that has left the ring may read without its library, and one that closes with a byte
  // unread resets the connection. In one order with leave_receiving() and take_last_doorbell():
  // either it sees the doorbell or this sees that it has left.
  const bool left =
      (side.out().control->tail.load(std::memory_order_seq_cst) & kLeft) != 0 ||
      (side.in().control->sender_said.load(std::memory_order_seq_cst) & Direction::kClosed) != 0;
  const std::byte bell{};
  const long sent =
      left ? 0 : kernel(SYS_sendto, fd, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0);
  if (sent != 1) side.out().control->doorbell.store(0, std::memory_order_relaxed);
  side.sender.leave_kernel(side.out(), sent == 1 ? 1 : 0);
  return left || sent == 1;
}

// A byte that is not the program's is on its way to this end.
bool doorbell_rings(const Side& side) noexcept {
  return side.in().control->doorbell.load(std::memory_order_seq_cst) > side.receiver.kernel_taken();
}

// This end while it gives back. Holds the receiver's lock, but as long as other threads sleep in
// the kernel.
class GivingBack {
 public:
  GivingBack(Side& side, int fd, Guard& receiving) noexcept
      : side_(side),
        direction_(*side.in().control),
        fd_(fd),
        receiving_(receiving),
        generation_(side.generation.load(std::memory_order_relaxed)) {}

  // False: bytes are missing. Where that is so for another reason than the peer's, over() is true.
  bool give_back() noexcept {
    // In one order with the peer's count of its sends, see Sender::enter_kernel.
    direction_.handback.ask();
    const std::int64_t start = monotonic_ns();
    if (!let_others_read() || !collect()) return false;
    for (std::size_t done = 0; done != collected_.size();)
      if (!give_next(done)) {
        with_leaving.wasted_more(monotonic_ns() - start);
        return false;
      }
    direction_.handback.done();
    return true;
  }

  // While the lock was not held the socket was closed, or another thread has left.
  [[nodiscard]] bool over() const noexcept {
    return is_gone(side_, generation_) || side_.in().control == nullptr ||
           side_.receiver.has_left();
  }

 private:
  // What others read need not be given back, so they may go on for some time: those that sleep in
  // the kernel have to, since what they have taken they cannot count without the lock; and where
  // the peer has finished nothing can be put in front of the end, so there is no other way.
  bool let_others_read() noexcept {
    constexpr std::int64_t kNobodyReads = 1'000 * kMillisecond;
    const std::int64_t start = monotonic_ns();
    std::int64_t since = start;
    for (std::uint64_t come = 0; !is_all_in_kernel();) {
      const bool sleepers = side_.receiver.busy();
      if (!sleepers && (poll_now(fd_, POLLRDHUP) & POLLRDHUP) == 0) return true;
      const std::int64_t now = monotonic_ns();
      const std::uint64_t here = side_.receiver.position() + side_.receiver.kernel_taken();
      if (std::exchange(come, here) != here) since = now;
      if (now - start > kLongest || (!sleepers && now - since > kNobodyReads)) return !sleepers;
      receiving_.unlock();
      serve_peer();
      pause();
      if (!receiving_.lock() || over()) return false;
    }
    return true;
  }

  bool is_all_in_kernel() noexcept {
    return side_.receiver.emptied(side_.in()) && !doorbell_rings(side_);
  }

  // Reads all that the peer has sent, wherever it is.
  bool collect() noexcept {
    for (std::int64_t since = monotonic_ns(); !budget_.is_spent();) {
      // What is in the kernel alone can stay there.
      if (collected_.size() == 0 && is_all_in_kernel()) return true;
      if (!collected_.make_room(1)) return false;
      const bool quiet = direction_.kernel_sending.load(std::memory_order_seq_cst) == 0;
      const std::uint64_t sent = direction_.kernel_sent.load(std::memory_order_acquire);
      const long got = side_.has_messages() ? collect_message() : collect_bytes();
      if (got > 0) {
        collected_.grow(static_cast<std::size_t>(got));
        budget_.moved(static_cast<std::size_t>(got));
        since = monotonic_ns();
        continue;
      }
      // At the end of the stream nothing can be put in front of it any more.
      if (got != kNothing) return got == 0 && collected_.size() == 0;
      if (quiet && side_.receiver.kernel_taken() >= sent && is_all_in_kernel()) return true;
      if (monotonic_ns() - since > kLongest) return false;
      serve_peer();
      pause();
    }
    return false;
  }

  long collect_bytes() noexcept {
    const iovec part = collected_.free_part();
    Span to(&part, 1);
    return receive_now(side_.receiver, side_.in(), fd_, to, false, nullptr);
  }

  // As they lie in rings.
  long collect_message() noexcept {
    std::size_t length = 0;
    const auto next = [&](const iovec* part, std::size_t count, bool peek) {
      return receive_message_now(side_.receiver, side_.in(), fd_, part, count, peek, nullptr,
                                 length);
    };
    if (const long got = next(nullptr, 0, true); got != kMessage) return got;
    const std::size_t seen = length;
    const auto space = static_cast<std::size_t>(space_of_message(seen));
    if (space > side_.in().size || !collected_.make_room(space)) return -EMSGSIZE;
    std::byte* const place = collected_.data() + collected_.size();
    const iovec part{.iov_base = place + sizeof(std::uint64_t), .iov_len = seen};
    if (const long got = next(&part, 1, false); got != kMessage) return got;
    if (length != seen) return -EPROTO;
    const std::uint64_t header = length;
    std::memcpy(place, &header, sizeof header);
    return static_cast<long>(space);
  }

  // The next piece, as much as the ring's memory takes.
  bool give_next(std::size_t& done) noexcept {
    std::size_t size = std::min(collected_.size() - done, side_.in().size);
    if (side_.has_messages())
      size = static_cast<std::size_t>(
          whole_messages(collected_.as_ring(), done, collected_.size() - done, size));
    if (size == 0) return false;
    std::memcpy(side_.in().bytes, collected_.data() + done, size);
    direction_.handback.give(0, size);
    bool rung = false, borrowed = false;
    for (const std::int64_t start = monotonic_ns();;) {
      rung = rung || ring_doorbell(side_, fd_);
      const HandbackWord::Piece now = direction_.handback.look();
      if (now.state == HandbackWord::kServed) break;
      if (now.state == HandbackWord::kAgain) {
        if (!now.is_within(size) || now.to != size) return false;
        std::memcpy(side_.in().bytes, collected_.data() + done, size);
        direction_.handback.give(now.from, size);
        rung = false;
      }
      // Also of a peer that asks for them again and again.
      const std::int64_t waited = monotonic_ns() - start;
      if (waited > longest_ || budget_.is_spent() || is_dead()) return false;
      if (waited > kBeforeBorrowing && !borrowed && now.state == HandbackWord::kGiven &&
          direction_.handback.take_back(now)) {
        borrowed = true;
        if (!now.is_within(size) || now.to != size) return false;
        const std::size_t sent = now.from + send_in_peers_place(done + now.from, done + size);
        if (sent == size) break;
        direction_.handback.give(sent, size);
        rung = false;  // who was woken meanwhile has gone to sleep again
      }
      serve_peer();
      pause();
    }
    done += size;
    budget_.moved(size);
    return true;
  }

  std::size_t send_in_peers_place(std::size_t from, std::size_t to) const noexcept {
    const int socket = borrow_peer_socket(fd_, side_);
    if (socket < 0) return 0;
    std::size_t sent = 0;
    {
      const RoomForAll room(socket, side_.in().size);
      sent = send_now(socket, collected_.as_ring(), from, to, side_.has_messages());
    }
    kernel(SYS_close, socket);
    return sent;
  }

  [[nodiscard]] bool is_dead() const noexcept {
    return (poll_now(fd_, 0) & (POLLERR | POLLHUP)) != 0;
  }

  // Both ends may be leaving at once.
  void serve_peer() const noexcept {
    const Guard sending(side_.send_lock);
    if (sending && !is_gone(side_, generation_) && side_.out().control != nullptr)
      (void)serve_leaving_peer(side_, fd_);
  }

  Side& side_;
  Direction& direction_;
  int fd_;
  Guard& receiving_;
  const std::uint32_t generation_;
  const std::int64_t longest_ = with_leaving.longest();
  Budget budget_{kLongestForLeaving};
  Collected collected_;
};

// All that has been sent is the kernel's.
bool leave_sending(Side& side, int fd) noexcept {
  const Guard sending(side.send_lock);
  if (!sending || side.out().control == nullptr) return false;
  const bool first = !side.sender.gone_for_ever();
  send_last_bytes(side, fd, true);
  side.sender.leave_ring(side.out());
  if (first) set_nodelay_as_wanted(side, fd);
  return first;
}

void leave_receiving(Side& side, int fd) noexcept {
  Guard receiving(side.receive_lock);
  if (!receiving || side.in().control == nullptr || side.receiver.has_left()) return;
  side.receiver.watch_for_ever(side.in());
  // The kernel would refuse what is given back.
  if (side.in().control->receiver_finished.load(std::memory_order_relaxed) != 0) return;
  side.in().control->tail.fetch_or(kLeft, std::memory_order_seq_cst);
  (void)side.receiver.next(side.in());
  take_doorbell(side, fd);
  const bool empty =
      side.receiver.emptied(side.in()) && !doorbell_rings(side) && !side.receiver.broken();
  if (GivingBack giving(side, fd, receiving); !empty && !giving.give_back()) {
    if (!receiving || giving.over()) return;
    log(LogLevel::warn, "descriptor %d is reset: the peer does not take back what is unread", fd);
    reset(side, fd, *side.in().control);
  }
  side.receiver.leave(side.in());
}

}  // namespace

bool serve_leaving_peer(Side& side, int fd) noexcept {
  const Ring& ring = side.out();
  if (side.sender.gave_up_leaving_peer()) return true;
  HandbackWord& word = ring.control->handback;
  const HandbackWord::Piece piece = word.look();
  if (piece.state != HandbackWord::kGiven) return !piece.is_under_way();
  if (!piece.is_within(ring.size) || !word.take(piece)) return false;
  // It cannot write over them any more: it has seen that the receiver left.
  if (side.sender.wrote_in_vain()) {
    word.again(piece);
    return false;
  }
  std::size_t upto = piece.from;
  {
    const RoomForAll room(fd, ring.size);
    upto += send_now(fd, ring, piece.from, piece.to, side.has_messages());
  }
  if (upto == piece.to)
    word.served();
  else
    word.give(upto, piece.to);
  return false;
}

void answer_leaving_peer(Side& side, int fd) noexcept {
  const Guard sending(side.send_lock);
  if (sending && side.out().control != nullptr) (void)serve_leaving_peer(side, fd);
}

namespace {

// The peer's word does not count from here on: it would begin to leave again.
void give_up_leaving_peer(Side& side, int fd) noexcept {
  side.sender.give_up_leaving_peer();
  reset(side, fd, *side.out().control);
}

// Until `end`. False if a signal came.
bool wait_for_leaving_peer(Side& side, int fd, std::int64_t end) noexcept {
  while (!serve_leaving_peer(side, fd)) {
    if (monotonic_ns() > end)
      give_up_leaving_peer(side, fd);
    else if (!pause())
      return false;
  }
  return true;
}

}  // namespace

Left await_leaving_peer(Side& side, int fd, std::int64_t longest) noexcept {
  for (const std::int64_t start = monotonic_ns();;) {
    const std::int64_t now = monotonic_ns();
    if (side.peer_leaves_since == 0) side.peer_leaves_since = now;
    const bool too_long = now - side.peer_leaves_since >= kLongestForLeaving;
    const bool over = serve_leaving_peer(side, fd);
    if (!over && too_long) give_up_leaving_peer(side, fd);
    if (over || too_long) {
      side.peer_leaves_since = 0;
      return Left::yes;
    }
    if (now - start >= longest) return Left::not_yet;
    if (!pause()) return Left::interrupted;
  }
}

bool bear_with_leaving_peer(Side& side, int fd) noexcept {
  Left left = Left::interrupted;
  while (left == Left::interrupted) {
    const std::int64_t since = side.peer_leaves_since;
    left = await_leaving_peer(side, fd, since == 0 ? kMoment : since + kMoment - monotonic_ns());
  }
  return left == Left::yes;
}

void take_doorbell(Side& side, int fd) noexcept {
  if (side.in().control == nullptr || !doorbell_rings(side) || side.receiver.held(side.in()) != 0)
    return;
  // The next byte, most of the time.
  std::byte bell;
  if (side.in().control->doorbell.load(std::memory_order_acquire) ==
          side.receiver.kernel_taken() + 1 &&
      kernel(SYS_recvfrom, fd, &bell, 1, MSG_DONTWAIT, nullptr, nullptr) == 1)
    side.receiver.taken_from_kernel(side.in(), 1);
}

bool take_doorbell_told(Side& side, int fd) noexcept {
  const Direction* const in = side.in().control;
  if (in == nullptr || in->doorbell.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  const Guard guard(side.receive_lock);
  // By now the number may be another file's; a side that is found is not freed before the lock is.
  if (!guard || find_side(fd) != &side || side.in().control == nullptr || side.receiver.busy())
    return false;
  const std::uint64_t before = side.receiver.kernel_taken();
  take_doorbell(side, fd);
  if (side.receiver.kernel_taken() == before) return false;
  answer_leaving_peer(side, fd);
  return true;
}

void take_last_doorbell(Side& side, int fd) noexcept {
  constexpr int kLooks = 1000;
  for (int i = 0; i < kLooks && side.in().control != nullptr && doorbell_rings(side); ++i) {
    take_doorbell(side, fd);
    if (side.in().control->kernel_sending.load(std::memory_order_seq_cst) == 0) break;
    kernel(SYS_sched_yield);
  }
  take_doorbell(side, fd);
}

void send_last_bytes(Side& side, int fd, bool goes_on) noexcept {
  const Ring& ring = side.out();
  // In all, whatever interrupts it, and however often the peer leaves.
  const std::int64_t start = monotonic_ns();
  const std::int64_t end = start + (goes_on ? kLongestBeforeClosing : with_closing.longest());
  const bool had_given_up = side.sender.gave_up_leaving_peer();
  do {
    while (!wait_for_leaving_peer(side, fd, end)) continue;
    const RoomForAll room(fd, side.sender.unread(ring) != 0 ? ring.size : 0);
    reclaim(side, fd, true);
    // A peer that has begun to leave meanwhile holds some of them. In one order with collect():
    // either it finds the ring empty or this sees that it has asked.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } while (!side.sender.gave_up_leaving_peer() &&
           ring.control->handback.look_in_order().is_under_way());
  if (!goes_on && !had_given_up && side.sender.gave_up_leaving_peer())
    with_closing.wasted_more(monotonic_ns() - start);
}

namespace {

// Whether another file has that number here: of a child of vfork(2) only the descriptors are its
// own.
bool is_anothers_here(const Side& side, int fd) noexcept {
  return side.accelerated() && !is_confined() && !in_own_process() &&
         cookie_of(fd) != side.own().cookie;
}

}  // namespace

void hand_back(Side& side, int fd, Reason reason) noexcept {
  if (is_anothers_here(side, fd)) return;
  side.stay_watched.store(true, std::memory_order_relaxed);
  if (reason == Reason::passed) side.other_holders_unknown = true;
  FARCALL_PROBE2(hand_back, side.own().observed, static_cast<int>(reason));
  end_candidacy(fd, side, reason);
  const bool first = leave_sending(side, fd);
  leave_receiving(side, fd);
  if (first) note_reason(side, reason);
}

}  // namespace farcall::preload
