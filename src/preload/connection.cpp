// SPDX-License-Identifier: Apache-2.0
#include "preload/connection.hpp"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <iterator>

#include "preload/call_result.hpp"
#include "preload/kind.hpp"
#include "preload/log.hpp"
#include "preload/real.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {
namespace {

// Bytes that this end has sent; negative errno.
long kernel_unacknowledged(int fd) noexcept {
  int bytes = 0;
  const long result = kernel(SYS_ioctl, fd, SIOCOUTQ, &bytes);
  return result < 0 ? result : bytes;
}

// The peer has died, or was closed behind its library's back, with bytes of ours unread: the
// kernel would have reset the connection. Holds the sender's lock.
bool left_bytes_unread(Side& side, int fd) noexcept {
  if (side.reset_told) return false;
  if (side.out().control == nullptr || side.in().control == nullptr) return false;
  // One that closes a TCP connection resets it itself.
  const std::uint32_t said = side.in().control->sender_said.load(std::memory_order_acquire);
  if (side.kind == Kind::tcp ? said != 0 : said == Direction::kFinished) return false;
  // The end that comes of shutting down is no sign that the peer has died.
  const std::uint32_t finished =
      side.in().control->receiver_finished.load(std::memory_order_relaxed);
  if (finished != 0 && (said & Direction::kClosed) == 0) return false;
  if (side.sender.unread(side.out()) != 0) return true;
  // What was taken back from it at last may have reached TCP behind its end, and is acknowledged by
  // nobody. What came before that the kernel answers for, also where the peer had not counted it.
  return side.kind == Kind::tcp && side.reclaimed_to != 0 &&
         (side.out().control->tail.load(std::memory_order_acquire) & kLeft) == 0 &&
         side.out().control->kernel_taken.load(std::memory_order_acquire) < side.reclaimed_to &&
         kernel_unacknowledged(fd) != 0;
}

// One end could not give back what it had not read.
bool is_marked_lost(const Ring& ring) noexcept {
  return ring.control != nullptr && ring.control->handback.look().state == HandbackWord::kLost;
}

}  // namespace

bool is_reset_to_sender(Side& side, int fd) noexcept {
  const bool lost = is_marked_lost(side.in()) || is_marked_lost(side.out());
  return !side.reset_told && (lost || left_bytes_unread(side, fd));
}

bool is_reset(Side& side, int fd) noexcept {
  const Guard sending(side.send_lock);
  return is_reset_to_sender(side, fd);
}

bool peer_has_closed(const Side& side) noexcept {
  const Direction* const in = side.in().control;
  return in != nullptr &&
         (in->sender_said.load(std::memory_order_acquire) & Direction::kClosed) != 0;
}

bool peer_is_gone(const Side& side, int fd) noexcept {
  if (peer_has_closed(side)) return true;
  const Direction* const in = side.in().control;
  if (in == nullptr) return false;
  if (is_unix(side.kind)) return (poll_now(fd, 0) & POLLHUP) != 0;
  // An end that nobody has announced.
  return in->sender_said.load(std::memory_order_acquire) == 0 &&
         (poll_now(fd, POLLRDHUP) & (POLLHUP | POLLRDHUP)) != 0;
}

void reset_is_told(Side& side, int fd) noexcept {
  side.reset_told = true;
  if (side.kind != Kind::tcp) return;
  // From here on the kernel says what it would say; what it knows by itself it tells no more.
  kernel(SYS_shutdown, fd, SHUT_RDWR);
  int error = 0;
  socklen_t size = sizeof error;
  kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &size);
}

int told_by_kernel(Side& side, int fd, int error) noexcept {
  if (error == EPIPE && side.kind == Kind::tcp && is_reset(side, fd)) error = ECONNRESET;
  if (error == ECONNRESET) side.reset_told = true;
  return error;
}

int take_pending_error(Side& side, int fd) noexcept {
  int error = take_error(side);
  socklen_t size = sizeof error;
  if (error == 0) kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &size);
  const Guard receiving(side.receive_lock);
  if (receiving) error = told_by_kernel(side, fd, error);
  if (error != 0 || !receiving || !peer_is_gone(side, fd) || !is_reset(side, fd)) return error;
  reset_is_told(side, fd);
  return ECONNRESET;
}

bool is_of_connection(int error) noexcept {
  constexpr int kOthers[] = {0, EAGAIN, EINTR, EBADF, EFAULT, EINVAL, ENOMEM, ENOBUFS};
  return std::find(std::begin(kOthers), std::end(kOthers), error) == std::end(kOthers);
}

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

int take_error_to_receive(Side& side) noexcept {
  return side.error_kept.load(std::memory_order_relaxed) == EPIPE ? 0 : take_error(side);
}

int take_error_to_send(Side& side) noexcept {
  const int error = take_error(side);
  return error == EPIPE ? 0 : error;
}

void keep_broken_pipe(Side& side, int fd) noexcept {
  const Direction* const out = side.out().control;
  if (side.kind != Kind::tcp || side.reset_told || out == nullptr ||
      out->sender_said.load(std::memory_order_relaxed) != 0 || (poll_now(fd, 0) & POLLHUP) == 0)
    return;
  side.reset_told = true;
  keep_error(side, EPIPE);
}

void note_room(Side& side, int fd) noexcept {
  // What unix sockets take is more than their rings hold, see ring_bytes_of().
  if (side.kind == Kind::tcp && side.out().control != nullptr)
    side.sender.limit(side.out(), most_in_all(fd));
  int room = 0;
  socklen_t size = sizeof room;
  if (kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_SNDBUF, &room, &size) == 0 && room >= 0)
    side.room.store(static_cast<std::uint32_t>(room), std::memory_order_relaxed);
}

void set_nodelay_as_wanted(const Side& side, int fd) noexcept {
  if (side.kind != Kind::tcp) return;
  const int wanted = side.nodelay.load(std::memory_order_relaxed) ? 1 : 0;
  kernel(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &wanted, sizeof wanted);
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

}  // namespace farcall::preload
