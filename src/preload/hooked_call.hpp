// SPDX-License-Identifier: Apache-2.0
//
// What the hooks that move bytes have in common: the program's call, as the library sees it and as
// the C library makes it.
#pragma once

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <tuple>

#include "preload/connection.hpp"
#include "preload/handback.hpp"
#include "preload/udp/calls.hpp"

namespace farcall::preload {

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
          .libc_call = BoundCall::make,
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

// As much as the kernel moves in one call.
inline iovec part_of(const void* buffer, std::size_t size) {
  constexpr std::size_t kMost = 0x7ffff000;
  return {.iov_base = const_cast<void*>(buffer), .iov_len = std::min(size, kMost)};
}

inline std::size_t bytes_in(const iovec* parts, std::size_t count) noexcept {
  return Span(parts, count).left();
}

// recvmsg() and sendmsg(); `is_rest` as of Call.
ssize_t receive_one(int fd, msghdr* message, int flags, bool is_rest);
ssize_t send_one(int fd, const msghdr* message, int flags, bool is_rest);

// Hands back the descriptors that leave for programs of which nobody knows what they are.
void hand_back_passed(const msghdr& message) noexcept;

// Calls that the kernel carries out in as many messages as it likes.
inline void leave_uncounted(Side* side, int fd) noexcept {
  if (side == nullptr || !side->has_messages()) return;
  hand_back(*side, fd, Reason::option);
}

// For whoever moves bytes behind the library's back.
inline void leave_socket(int fd) noexcept {
  if (Side* const side = find_side(fd)) hand_back(*side, fd, Reason::passed);
  if (UdpSocket* const udp = find_udp(fd)) udp_leave(*udp);
}

// Bytes of a unix stream may have come with descriptors.
inline Afterwards afterwards(const Side& side, bool has_control) noexcept {
  return has_control && is_unix(side.kind) ? Afterwards::ring_when_taken : Afterwards::ring;
}

// The ring holds nothing back; and bytes that wait in the kernel for more to come would keep those
// of the ring waiting behind them.
inline int without_more(const Side& side, int flags) noexcept {
  return side.accelerated() && !side.corked.load(std::memory_order_relaxed) ? flags & ~MSG_MORE
                                                                            : flags;
}

}  // namespace farcall::preload
