// SPDX-License-Identifier: Apache-2.0
//
// Hooks: the calls that move bytes.
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/real.hpp"
#include "preload/udp_calls.hpp"

namespace farcall::preload {
namespace {

// A call of the C library with its arguments.
template <class Function, class... Arguments>
struct Bound {
  Function* function;
  std::tuple<Arguments...> arguments;

  static ssize_t make(const void* bound) {
    const auto* self = static_cast<const Bound*>(bound);
    return std::apply(self->function, self->arguments);
  }
};
template <class Function, class... Arguments>
Bound<Function, Arguments...> bind(Function* function, Arguments... arguments) {
  return {function, {arguments...}};
}

template <class BoundCall>
Call call(int fd, const iovec* parts, std::size_t count, int flags, const BoundCall& bound) {
  return {.fd = fd,
          .parts = parts,
          .count = count,
          .flags = flags,
          .as_it_is = BoundCall::make,
          .arguments = &bound};
}

using Recv = ssize_t(int, void*, std::size_t, int);
using Recvfrom = ssize_t(int, void*, std::size_t, int, sockaddr*, socklen_t*);
using Recvmsg = ssize_t(int, msghdr*, int);
using Read = ssize_t(int, void*, std::size_t);
using Readv = ssize_t(int, const iovec*, int);
using Send = ssize_t(int, const void*, std::size_t, int);
using Sendto = ssize_t(int, const void*, std::size_t, int, const sockaddr*, socklen_t);
using Sendmsg = ssize_t(int, const msghdr*, int);
using Write = ssize_t(int, const void*, std::size_t);

iovec part_of(const void* buffer, std::size_t size) {
  return {.iov_base = const_cast<void*>(buffer), .iov_len = size};
}

// Descriptors that leave for programs of which nobody knows what they are.
void hand_back_passed(const msghdr& message) noexcept {
  if (is_no_address(message.msg_control) || message.msg_controllen < sizeof(cmsghdr)) return;
  for (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(head))) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::copy_n(CMSG_DATA(head) + i * sizeof fd, sizeof fd,
                  reinterpret_cast<unsigned char*>(&fd));
      if (Side* side = find_side(fd)) hand_back(*side, fd, Reason::passed);
      if (UdpSocket* udp = find_udp(fd)) udp_leave(*udp);
      leave_to_kernel(fd);
    }
  }
}

ssize_t receive_message(int fd, Side& side, msghdr* message, int flags) {
  const auto bound = bind(real::next<"recvmsg", Recvmsg>(), fd, message, flags);
  const std::size_t control = message->msg_controllen;
  const ssize_t got =
      receive_from(side, call(fd, message->msg_iov, message->msg_iovlen, flags, bound));
  // As the kernel leaves it where nothing accompanies the bytes; where it has made the call itself
  // it has done so already.
  if (got >= 0 && (flags & (MSG_OOB | MSG_ERRQUEUE)) == 0) {
    message->msg_namelen = 0;
    if (message->msg_controllen == control) message->msg_controllen = 0;
    message->msg_flags &= MSG_TRUNC | MSG_CTRUNC | MSG_OOB | MSG_CMSG_CLOEXEC;
    message->msg_flags &= ~(MSG_TRUNC | MSG_CTRUNC);
  }
  return got;
}

ssize_t receive_address(int fd, Side& side, void* buffer, std::size_t size, int flags,
                        sockaddr* from, socklen_t* from_size) {
  const iovec part = part_of(buffer, size);
  const auto bound =
      bind(real::next<"recvfrom", Recvfrom>(), fd, buffer, size, flags, from, from_size);
  const ssize_t got = receive_from(side, call(fd, &part, 1, flags, bound));
  if (got >= 0 && from != nullptr && from_size != nullptr) *from_size = 0;
  return got;
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
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

ssize_t recv(int fd, void* buffer, size_t size, int flags) {
  Recv* const next = real::next<"recv", Recv>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size, flags);
    const iovec part = part_of(buffer, size);
    return udp_receive(*udp, fd, &part, 1, flags);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags);
  return receive_from(*side, call(fd, &part, 1, flags, bound));
}

ssize_t recvfrom(int fd, void* buffer, size_t size, int flags, sockaddr* from,
                 socklen_t* from_size) {
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || is_bad_optional(from) || (from != nullptr && is_no_address(from_size)))
        [[likely]]
      return real::next<"recvfrom", Recvfrom>()(fd, buffer, size, flags, from, from_size);
    return udp_receive_from(*udp, fd, part_of(buffer, size), flags, from, from_size);
  }
  // A stream has no addresses, so the kernel takes no offence at bad ones.
  if (is_no_address(from_size)) from = nullptr;
  return receive_address(fd, *side, buffer, size, flags, from, from_size);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_message(message)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || is_bad_message(message)) [[likely]]
      return real::next<"recvmsg", Recvmsg>()(fd, message, flags);
    return udp_receive(*udp, fd, *message, flags);
  }
  return receive_message(fd, *side, message, flags);
}

int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  using Recvmmsg = int(int, mmsghdr*, unsigned, int, timespec*);
  Side* const side = find_side(fd);
  if (side == nullptr || is_no_address(messages)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || is_no_address(messages) || is_bad_optional(timeout)) [[likely]]
      return real::next<"recvmmsg", Recvmmsg>()(fd, messages, count, flags, timeout);
    return udp_receive_many(*udp, fd, messages, count, flags, timeout);
  }
  return each_of(messages, count, [&](msghdr& message) {
    const ssize_t got = receive_message(fd, *side, &message, flags & ~MSG_WAITFORONE);
    if ((flags & MSG_WAITFORONE) != 0) flags |= MSG_DONTWAIT;
    return got;
  });
}

ssize_t read(int fd, void* buffer, size_t size) {
  Read* const next = real::next<"read", Read>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size);
    const iovec part = part_of(buffer, size);
    return udp_receive(*udp, fd, &part, 1, 0);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size);
  return receive_from(*side, call(fd, &part, 1, 0, bound));
}

ssize_t readv(int fd, const iovec* parts, int count) {
  Readv* const next = real::next<"readv", Readv>();
  Side* const side = find_side(fd);
  if (side == nullptr || count < 0) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || count < 0) [[likely]]
      return next(fd, parts, count);
    return udp_receive(*udp, fd, parts, static_cast<std::size_t>(count), 0);
  }
  const auto bound = bind(next, fd, parts, count);
  return receive_from(*side, call(fd, parts, static_cast<std::size_t>(count), 0, bound));
}

ssize_t send(int fd, const void* buffer, size_t size, int flags) {
  Send* const next = real::next<"send", Send>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size, flags);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, flags);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags);
  return send_to(*side, call(fd, &part, 1, flags, bound));
}

ssize_t sendto(int fd, const void* buffer, size_t size, int flags, const sockaddr* to,
               socklen_t to_size) {
  Sendto* const next = real::next<"sendto", Sendto>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size, flags, to, to_size);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, flags, to, to_size);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags, to, to_size);
  return send_to(*side, call(fd, &part, 1, flags, bound));
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  Sendmsg* const next = real::next<"sendmsg", Sendmsg>();
  if (!is_no_address(message) && message->msg_controllen != 0) [[unlikely]]
    hand_back_passed(*message);
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_message(message)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || is_bad_message(message)) [[likely]]
      return next(fd, message, flags);
    return udp_send(*udp, fd, *message, flags);
  }
  const auto bound = bind(next, fd, message, flags);
  const Call whole = call(fd, message->msg_iov, message->msg_iovlen, flags, bound);
  // What accompanies the bytes is for the kernel.
  if (message->msg_controllen != 0) return send_by_kernel(*side, whole, false);
  return send_to(*side, whole);
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  using Sendmmsg = int(int, mmsghdr*, unsigned, int);
  if ((find_side(fd) == nullptr && find_udp(fd) == nullptr) || is_no_address(messages)) [[likely]] {
    for (unsigned i = 0; i < count && !is_no_address(messages); ++i)
      if (messages[i].msg_hdr.msg_controllen != 0) hand_back_passed(messages[i].msg_hdr);
    return real::next<"sendmmsg", Sendmmsg>()(fd, messages, count, flags);
  }
  return each_of(messages, count, [&](msghdr& message) { return sendmsg(fd, &message, flags); });
}

ssize_t write(int fd, const void* buffer, size_t size) {
  Write* const next = real::next<"write", Write>();
  Side* const side = find_side(fd);
  if (side == nullptr) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, 0);
  }
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size);
  return send_to(*side, call(fd, &part, 1, 0, bound));
}

ssize_t writev(int fd, const iovec* parts, int count) {
  Readv* const next = real::next<"writev", Readv>();
  Side* const side = find_side(fd);
  if (side == nullptr || count < 0) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || count < 0) [[likely]]
      return next(fd, parts, count);
    return udp_send(*udp, fd, parts, static_cast<std::size_t>(count), 0);
  }
  const auto bound = bind(next, fd, parts, count);
  return send_to(*side, call(fd, parts, static_cast<std::size_t>(count), 0, bound));
}

ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  using Preadv = ssize_t(int, const iovec*, int, off_t, int);
  const bool here = find_side(fd) != nullptr || find_udp(fd) != nullptr;
  if (!here || offset != -1 || count < 0 || (flags & ~RWF_NOWAIT) != 0) [[likely]]
    return real::next<"preadv2", Preadv>()(fd, parts, count, offset, flags);
  if (flags == 0) return readv(fd, parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<std::size_t>(count);
  return recvmsg(fd, &message, MSG_DONTWAIT);
}

ssize_t pwritev2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  using Preadv = ssize_t(int, const iovec*, int, off_t, int);
  const bool here = find_side(fd) != nullptr || find_udp(fd) != nullptr;
  if (!here || offset != -1 || count < 0 || (flags & ~RWF_NOWAIT) != 0) [[likely]]
    return real::next<"pwritev2", Preadv>()(fd, parts, count, offset, flags);
  if (flags == 0) return writev(fd, parts, count);
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

ssize_t sendfile(int out, int in, off_t* offset, size_t size) {
  using Sendfile = ssize_t(int, int, off_t*, std::size_t);
  Sendfile* const next = real::next<"sendfile", Sendfile>();
  Side* const side = find_side(out);
  if (side == nullptr) [[likely]]
    return next(out, in, offset, size);
  const auto bound = bind(next, out, in, offset, size);
  return send_by_kernel(*side, call(out, nullptr, 0, 0, bound), false);
}

ssize_t sendfile64(int out, int in, off64_t* offset, size_t size) {
  return sendfile(out, in, offset, size);
}

ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t size,
               unsigned flags) {
  using Splice = ssize_t(int, off64_t*, int, off64_t*, std::size_t, unsigned);
  Splice* const next = real::next<"splice", Splice>();
  Side* const from = find_side(in);
  Side* const to = find_side(out);
  if (from == nullptr && to == nullptr) [[likely]]
    return next(in, in_offset, out, out_offset, size, flags);
  const auto bound = bind(next, in, in_offset, out, out_offset, size, flags);
  if (to != nullptr) return send_by_kernel(*to, call(out, nullptr, 0, 0, bound), false);
  if (ring_readable(*from)) {
    // Into a pipe by hand, as much as it takes.
    std::byte buffer[4096];
    const ssize_t seen = recv(in, buffer, std::min(size, sizeof buffer), MSG_PEEK | MSG_DONTWAIT);
    if (seen > 0) {
      const ssize_t written = real::next<"write", Write>()(out, buffer, static_cast<size_t>(seen));
      if (written > 0) (void)recv(in, buffer, static_cast<size_t>(written), MSG_DONTWAIT);
      return written;
    }
  }
  return splice_from_kernel(*from, call(in, nullptr, 0, 0, bound));
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
