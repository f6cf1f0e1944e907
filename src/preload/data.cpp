// SPDX-License-Identifier: Apache-2.0
//
// Hooks: the calls that move bytes.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/hooked_call.hpp"
#include "preload/real.hpp"
#include "preload/receive_kernel.hpp"
#include "preload/udp/calls.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

// MSG_TRUNC throws bytes of a stream away: no pointer of the program is looked at.
ssize_t discard(Side& side, const Call& whole) {
  std::byte scratch[4096];
  const std::size_t wanted = bytes_in(whole.parts, whole.count);
  std::size_t done = 0;
  std::int64_t slept = 0;
  while (done < wanted) {
    const std::size_t size = std::min(wanted - done, sizeof scratch);
    int flags = whole.flags & ~MSG_TRUNC;
    if (done != 0 && (flags & MSG_WAITALL) == 0) flags |= MSG_DONTWAIT;
    const iovec part = part_of(scratch, size);
    const auto bound = bind(real::next<"recv", Recv>(), whole.fd, scratch, size, flags);
    Call piece = call(whole.fd, &part, 1, flags, bound);
    piece.is_rest = whole.is_rest || done != 0;
    piece.slept = slept;
    const ssize_t got = receive_from(side, piece);
    slept = piece.slept;
    if (got < 0 && done == 0) return got;
    if (got < 0) keep_error(side, errno);
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < size && (flags & MSG_WAITALL) != 0) break;
    if (is_at_urgent_byte(side, whole.fd)) break;
    if ((flags & MSG_PEEK) != 0) {
      int there = 0;
      if (done < wanted && ::ioctl(whole.fd, FIONREAD, &there) == 0)
        done = std::clamp<std::size_t>(static_cast<std::size_t>(there), done, wanted);
      break;
    }
  }
  return static_cast<ssize_t>(done);
}

// Nothing comes any more.
bool has_ended(int fd) noexcept { return poll_now(fd, POLLRDHUP) != 0; }

// Nothing tells when more is there than has been looked at, but the kernel's own call waits for it.
ssize_t peek_at_all(Side& side, const Call& whole) {
  const bool waits =
      (whole.flags & MSG_DONTWAIT) == 0 && !side.nonblocking.load(std::memory_order_relaxed);
  if ((whole.flags & MSG_TRUNC) == 0) {
    Call now = whole;
    now.flags = (whole.flags & ~MSG_WAITALL) | MSG_DONTWAIT;
    const ssize_t got = receive_from(side, now);
    const bool all =
        got >= 0 && static_cast<std::size_t>(got) == bytes_in(whole.parts, whole.count);
    if (!waits || all || got == 0 || (got < 0 && errno != EAGAIN)) return got;
    if (got > 0 && has_ended(whole.fd)) return got;
  }
  hand_back(side, whole.fd, Reason::option);
  const ssize_t got = receive_from(side, whole);
  return got == kThrowsAway ? discard(side, whole) : got;
}

// Where nothing is wanted no message is read, and by writev() none is sent.
bool moves_nothing(int fd, const iovec* parts, std::size_t count) noexcept {
  const Side* const side = find_side(fd);
  const bool has_messages = side != nullptr ? side->has_messages() : find_udp(fd) != nullptr;
  return has_messages && !has_bad_part(parts, count) && bytes_in(parts, count) == 0;
}

// Threads are cancelled in the calls that may wait, also where nothing is left to wait for. No lock
// is held.
void cancellation_point(const Side& side) {
  if (side.accelerated()) ::pthread_testcancel();
}

// What these flags ask for on TCP the kernel does not know of unix streams; and who looks at bytes
// there does not wait for all of them. Of packets all there is comes at once.
ssize_t receive_unix(Side& side, Call whole) {
  Ancillary unwanted;
  if (whole.with == nullptr) whole.with = &unwanted;
  whole.flags &= ~(MSG_ERRQUEUE | (side.has_messages() ? MSG_WAITALL : MSG_TRUNC));
  if ((whole.flags & MSG_PEEK) != 0) whole.flags &= ~MSG_WAITALL;
  // What the kernel throws away with a pointer that is none cannot be counted.
  if (side.has_messages() && has_bad_part(whole.parts, whole.count)) [[unlikely]]
    hand_back(side, whole.fd, Reason::option);
  return receive_from(side, whole);
}

ssize_t receive_stream(Side& side, const Call& whole) {
  cancellation_point(side);
  if (is_unix(side.kind)) return receive_unix(side, whole);
  constexpr int kLookAtAll = MSG_PEEK | MSG_WAITALL;
  const bool looks_at_all =
      (whole.flags & kLookAtAll) == kLookAtAll && (whole.flags & (MSG_OOB | MSG_ERRQUEUE)) == 0;
  if (looks_at_all && side.accelerated()) [[unlikely]]
    return peek_at_all(side, whole);
  const ssize_t got = receive_from(side, whole);
  if (got != kThrowsAway) [[likely]]
    return got;
  return looks_at_all ? peek_at_all(side, whole) : discard(side, whole);
}

// recvmsg() on a copy of what the program passed, since a call may be made more than once, and
// what comes from the ring is told otherwise than what comes from the kernel.
struct MessageCall {
  int fd;
  const msghdr* asked;
  int flags;
  msghdr answer;
  bool by_kernel;  // made last

  static ssize_t make(const void* pointer) {
    auto* const self = static_cast<MessageCall*>(const_cast<void*>(pointer));
    self->answer = *self->asked;
    const ssize_t got = real::next<"recvmsg", Recvmsg>()(self->fd, &self->answer, self->flags);
    self->by_kernel = got >= 0;
    return got;
  }
};

// Bytes of a unix stream come with the address of their sender, if it has one; those of TCP have
// none.
socklen_t tell_sender(int fd, const Side& side, void* to, socklen_t room) noexcept {
  sockaddr_storage sender{};
  socklen_t size = sizeof sender;
  if (side.kind == Kind::tcp || kernel(SYS_getpeername, fd, &sender, &size) < 0 ||
      size <= sizeof(sa_family_t))
    return 0;
  std::memcpy(to, &sender, std::min(room, size));
  return size;
}

ssize_t receive_message(int fd, Side& side, msghdr* message, int flags, bool is_rest) {
  MessageCall made{.fd = fd, .asked = message, .flags = flags, .answer = {}, .by_kernel = false};
  Ancillary with{.control = message->msg_control,
                 .room = message->msg_controllen,
                 .wanted = flags & MSG_CMSG_CLOEXEC,
                 .is_told = true};
  const ssize_t got = receive_stream(side, {.fd = fd,
                                            .parts = message->msg_iov,
                                            .count = message->msg_iovlen,
                                            .flags = flags,
                                            .libc_call = MessageCall::make,
                                            .arguments = &made,
                                            .with = side.kind == Kind::tcp ? nullptr : &with,
                                            .is_rest = is_rest});
  if (got < 0) return got;
  if (made.by_kernel && !with.in_vain) {
    message->msg_namelen = made.answer.msg_namelen;
    message->msg_controllen = made.answer.msg_controllen;
    message->msg_flags = made.answer.msg_flags;
  } else {
    if (message->msg_name != nullptr)
      message->msg_namelen = got == 0 && !with.is_message
                                 ? 0
                                 : tell_sender(fd, side, message->msg_name, message->msg_namelen);
    message->msg_controllen = with.size;
    message->msg_flags = with.told | (flags & MSG_CMSG_CLOEXEC);
  }
  return got;
}

ssize_t receive_address(int fd, Side& side, void* buffer, std::size_t size, int flags,
                        sockaddr* from, socklen_t* from_size) {
  const iovec part = part_of(buffer, size);
  const auto bound = bind(real::next<"recv", Recv>(), fd, buffer, size, flags);
  Ancillary with;
  Call whole = call(fd, &part, 1, flags, bound);
  if (is_unix(side.kind)) whole.with = &with;
  const ssize_t got = receive_stream(side, whole);
  if (got < 0 || from == nullptr) return got;
  // The kernel looks at the room for the address when the bytes are gone already.
  if (is_no_address(from_size)) return with_errno(-EFAULT);
  if (static_cast<std::int32_t>(*from_size) < 0) return with_errno(-EINVAL);
  *from_size = got == 0 && !with.is_message ? 0 : tell_sender(fd, side, from, *from_size);
  return got;
}

// The flags of a sending call as they are from here on.
int flags_for(int fd, Side& side, int flags) noexcept {
  // What is urgent is counted by the sender, but the receiver may never read it.
  if ((flags & MSG_OOB) != 0) end_candidacy(fd, side, Reason::urgent);
  return (flags & MSG_MORE) == 0 ? flags : without_more(side, flags);
}

// To send to an address is an error where a unix stream is connected; TCP overlooks it.
bool is_refused_name(const Side& side, const void* name) noexcept {
  return name != nullptr && side.kind == Kind::unix_stream;
}

// The kernel refuses it, the flag of 32-bit programs too.
bool is_bad_call(const msghdr* message, int flags) noexcept {
  constexpr unsigned kMsgCmsgCompat = 0x8000'0000;
  return (static_cast<unsigned>(flags) & kMsgCmsgCompat) != 0 || is_bad_message(message);
}

ssize_t send_stream(Side& side, const Call& whole) {
  cancellation_point(side);
  if (side.corked.load(std::memory_order_relaxed)) [[unlikely]]
    return send_by_kernel(side, whole, Afterwards::ring);
  return send_to(side, whole);
}

// What readv() and writev() have in common.
template <class ByUdp, class ByStream>
[[gnu::always_inline]] inline ssize_t move_parts(Readv* next, int fd, const iovec* parts, int count,
                                                 ByUdp by_udp, ByStream by_stream) {
  Side* const side = find_side(fd);
  UdpSocket* const udp = side == nullptr ? udp_called(fd) : nullptr;
  if ((side == nullptr && udp == nullptr) || is_bad_vector(parts, count)) [[likely]]
    return next(fd, parts, count);
  const auto size = static_cast<std::size_t>(count);
  if (moves_nothing(fd, parts, size)) return next(fd, parts, count);
  if (udp != nullptr) return by_udp(*udp, size);
  const auto bound = bind(next, fd, parts, count);
  return by_stream(*side, call(fd, parts, size, 0, bound));
}

[[gnu::constructor]] void look_up() noexcept {
  (void)real::next<"recv", Recv>();
  (void)real::next<"recvfrom", Recvfrom>();
  (void)real::next<"recvmsg", Recvmsg>();
  (void)real::next<"read", Read>();
  (void)real::next<"readv", Readv>();
  (void)real::next<"send", Send>();
  (void)real::next<"sendto", Sendto>();
  (void)real::next<"sendmsg", Sendmsg>();
  (void)real::next<"write", Write>();
  (void)real::next<"writev", Readv>();
}

}  // namespace

ssize_t receive_one(int fd, msghdr* message, int flags, bool is_rest) {
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_call(message, flags)) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr || is_bad_call(message, flags)) [[likely]]
      return real::next<"recvmsg", Recvmsg>()(fd, message, flags);
    return udp_receive(*udp, fd, *message, flags);
  }
  return receive_message(fd, *side, message, flags, is_rest);
}

ssize_t send_one(int fd, const msghdr* message, int flags, bool is_rest) {
  Sendmsg* const next = real::next<"sendmsg", Sendmsg>();
  if (!is_no_address(message) && message->msg_controllen != 0) [[unlikely]]
    hand_back_passed(*message);
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_call(message, flags) ||
      is_bad_name(message->msg_name, message->msg_namelen)) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr || is_bad_call(message, flags)) [[likely]]
      return next(fd, message, flags);
    return udp_send(*udp, fd, *message, flags);
  }
  flags = flags_for(fd, *side, flags);
  const auto bound = bind(next, fd, message, flags);
  Call whole = call(fd, message->msg_iov, message->msg_iovlen, flags, bound);
  whole.is_rest = is_rest;
  // What accompanies the bytes is for the kernel.
  if (message->msg_controllen != 0 || is_refused_name(*side, message->msg_name))
    return send_by_kernel(*side, whole, afterwards(*side, message->msg_controllen != 0));
  return send_stream(*side, whole);
}

}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

ssize_t recv(int fd, void* buffer, size_t size, int flags) {
  Recv* const next = real::next<"recv", Recv>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size, flags);
    const iovec part = part_of(buffer, size);
    return udp_receive(*udp, fd, &part, 1, flags);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags);
  return receive_stream(*side, call(fd, &part, 1, flags, bound));
}

ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, sockaddr* from,
                 socklen_t* from_size) {
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr || is_bad_optional(from) || (from != nullptr && is_no_address(from_size)))
        [[likely]]
      return real::next<"recvfrom", Recvfrom>()(fd, buffer, size, flags, from, from_size);
    return udp_receive_from(*udp, fd, part_of(buffer, size), flags, from, from_size);
  }
  return receive_address(fd, *side, buffer, size, flags, from, from_size);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return receive_one(fd, message, flags, false);
}

ssize_t read(int fd, void* buffer, size_t size) {
  Read* const next = real::next<"read", Read>();
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_length(size)) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size);
    const iovec part = part_of(buffer, size);
    return moves_nothing(fd, &part, 1) ? next(fd, buffer, size)
                                       : udp_receive(*udp, fd, &part, 1, 0);
  }
  const iovec part = part_of(buffer, size);
  if (moves_nothing(fd, &part, 1)) return next(fd, buffer, size);
  const auto bound = bind(next, fd, buffer, size);
  return receive_stream(*side, call(fd, &part, 1, 0, bound));
}

ssize_t readv(int fd, const iovec* parts, int count) {
  return move_parts(
      real::next<"readv", Readv>(), fd, parts, count,
      [&](UdpSocket& udp, std::size_t n) { return udp_receive(udp, fd, parts, n, 0); },
      receive_stream);
}

ssize_t send(int fd, const void* buffer, size_t size, int flags) {
  Send* const next = real::next<"send", Send>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size, flags);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, flags);
  }
  flags = flags_for(fd, *side, flags);
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags);
  return send_stream(*side, call(fd, &part, 1, flags, bound));
}

ssize_t sendto(int fd, const void* buffer, size_t size, int flags, const sockaddr* to,
               socklen_t to_size) {
  Sendto* const next = real::next<"sendto", Sendto>();
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_name(to, to_size)) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    // sendmsg() takes a name of no bytes as none, and cuts one that is too long.
    const bool refused = to != nullptr && (to_size == 0 || is_bad_name(to, to_size));
    if (udp == nullptr || refused) [[likely]]
      return next(fd, buffer, size, flags, to, to_size);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, flags, to, to_size);
  }
  flags = flags_for(fd, *side, flags);
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags, to, to_size);
  const Call whole = call(fd, &part, 1, flags, bound);
  if (is_refused_name(*side, to)) return send_by_kernel(*side, whole, Afterwards::ring);
  return send_stream(*side, whole);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return send_one(fd, message, flags, false);
}

ssize_t write(int fd, const void* buffer, size_t size) {
  Write* const next = real::next<"write", Write>();
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_length(size)) [[likely]] {
    UdpSocket* const udp = udp_called(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, 0);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size);
  return send_stream(*side, call(fd, &part, 1, 0, bound));
}

ssize_t writev(int fd, const iovec* parts, int count) {
  return move_parts(
      real::next<"writev", Readv>(), fd, parts, count,
      [&](UdpSocket& udp, std::size_t n) { return udp_send(udp, fd, parts, n, 0); }, send_stream);
}

}  // extern "C"

namespace {

// Whether what preadv2() or pwritev2() moves is the library's to move; where no byte is wanted the
// kernel moves nothing. Sockets take no notice of how a file is to be written.
bool is_of_library(int fd, const iovec* parts, int count, off_t offset, int flags) noexcept {
  const bool here = find_side(fd) != nullptr || find_udp(fd) != nullptr;
  if (!here || offset != -1 || is_bad_vector(parts, count) ||
      bytes_in(parts, static_cast<std::size_t>(count)) == 0)
    return false;
  constexpr int kOfFiles = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_APPEND;
  if ((flags & ~(RWF_NOWAIT | kOfFiles)) == 0) return true;
  leave_socket(fd);
  return false;
}

}  // namespace

extern "C" {

ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  using Preadv = ssize_t(int, const iovec*, int, off_t, int);
  if (!is_of_library(fd, parts, count, offset, flags)) [[likely]]
    return real::next<"preadv2", Preadv>()(fd, parts, count, offset, flags);
  if ((flags & RWF_NOWAIT) == 0) return readv(fd, parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return recvmsg(fd, &message, MSG_DONTWAIT);
}

ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  using Preadv = ssize_t(int, const iovec*, int, off_t, int);
  if (!is_of_library(fd, parts, count, offset, flags)) [[likely]]
    return real::next<"pwritev2", Preadv>()(fd, parts, count, offset, flags);
  if ((flags & RWF_NOWAIT) == 0) return writev(fd, parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return sendmsg(fd, &message, MSG_DONTWAIT);
}

ssize_t preadv64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  return preadv2(fd, parts, count, offset, flags);
}
ssize_t pwritev64v2(int fd, const iovec* parts, int count, off64_t offset, int flags) {
  return pwritev2(fd, parts, count, offset, flags);
}

// --- The names under which the compiler and old programs call them.

ssize_t __read(int fd, void* buffer, size_t size) { return read(fd, buffer, size); }
ssize_t __write(int fd, const void* buffer, size_t size) { return write(fd, buffer, size); }
ssize_t __send(int fd, const void* buffer, size_t size, int flags) {
  return send(fd, buffer, size, flags);
}

[[noreturn]] void __chk_fail();

ssize_t __read_chk(int fd, void* buffer, size_t size, size_t room) {
  if (size > room) __chk_fail();
  return read(fd, buffer, size);
}
ssize_t __recv_chk(int fd, void* buffer, size_t size, size_t room, int flags) {
  if (size > room) __chk_fail();
  return recv(fd, buffer, size, flags);
}
ssize_t __recvfrom_chk(int fd, void* buffer, size_t size, size_t room, int flags, sockaddr* from,
                       socklen_t* from_size) {
  if (size > room) __chk_fail();
  return recvfrom(fd, buffer, size, flags, from, from_size);
}

}  // extern "C"
