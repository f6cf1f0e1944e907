// SPDX-License-Identifier: Apache-2.0
//
// The calls of the send and receive families, as the one that UDP sockets know.
#pragma once

#include <pthread.h>

#include <algorithm>

#include "preload/udp/udp.hpp"

namespace farcall::preload {

inline msghdr message_of(const iovec* parts, std::size_t count, const void* name = nullptr,
                         socklen_t name_size = 0) noexcept {
  msghdr message{};
  message.msg_name = const_cast<void*>(name);
  message.msg_namelen = name_size;
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = count;
  return message;
}

// The socket that a call of the program's is on, or null. Threads are cancelled in such calls, also
// where memory has a datagram each time. No lock is held.
inline UdpSocket* udp_called(int fd) {
  UdpSocket* const udp = find_udp(fd);
  if (udp != nullptr) [[unlikely]]
    ::pthread_testcancel();
  return udp;
}

inline ssize_t udp_receive(UdpSocket& socket, int fd, const iovec* parts, std::size_t count,
                           int flags) noexcept {
  msghdr message = message_of(parts, count);
  return udp_receive(socket, fd, message, flags);
}

inline ssize_t udp_receive_from(UdpSocket& socket, int fd, const iovec& part, int flags,
                                sockaddr* from, socklen_t* from_size) noexcept {
  const bool named = from != nullptr && from_size != nullptr;
  msghdr message = message_of(&part, 1, named ? from : nullptr, named ? *from_size : 0);
  const ssize_t got = udp_receive(socket, fd, message, flags);
  if (got >= 0 && named) *from_size = message.msg_namelen;
  return got;
}

// What recvmmsg() and sendmmsg() have in common: how many messages were moved, or -1.
inline constexpr unsigned kMostSent = 1024;  // with one call, as the kernel
template <class Move>
int each_of(mmsghdr* messages, unsigned count, Move move) {
  unsigned done = 0;
  for (; done < count; ++done) {
    const ssize_t moved = move(messages[done].msg_hdr);
    if (moved < 0) break;
    messages[done].msg_len = static_cast<unsigned>(moved);
  }
  return done != 0 ? static_cast<int>(done) : -1;
}

// As the kernel, which looks at the time after each datagram, but does not end a wait for one.
inline int udp_receive_many(UdpSocket& socket, int fd, mmsghdr* messages, unsigned count, int flags,
                            timespec* timeout) noexcept {
  constexpr std::int64_t kSecond = 1'000'000'000;
  if (timeout != nullptr &&
      (timeout->tv_sec < 0 || timeout->tv_nsec < 0 || timeout->tv_nsec >= kSecond)) {
    errno = EINVAL;
    return -1;
  }
  constexpr std::int64_t kLongest = std::int64_t{1} << 30;
  std::int64_t end = 0;
  if (timeout != nullptr)
    end = monotonic_ns() + std::min<std::int64_t>(timeout->tv_sec, kLongest) * kSecond +
          timeout->tv_nsec;
  bool over = false;
  const int done = each_of(messages, count, [&](msghdr& message) noexcept -> ssize_t {
    if (over) return -1;
    const ssize_t got = udp_receive(socket, fd, message, flags & ~MSG_WAITFORONE);
    if ((flags & MSG_WAITFORONE) != 0) flags |= MSG_DONTWAIT;
    if (got >= 0 && timeout != nullptr) {
      const std::int64_t left = std::max<std::int64_t>(end - monotonic_ns(), 0);
      *timeout = {.tv_sec = left / kSecond, .tv_nsec = left % kSecond};
      over = left == 0;
    }
    return got;
  });
  if (done > 0 && static_cast<unsigned>(done) < count && !over) udp_keep_error(socket, errno);
  return done;
}

inline ssize_t udp_send(UdpSocket& socket, int fd, const iovec* parts, std::size_t count, int flags,
                        const sockaddr* to = nullptr, socklen_t to_size = 0) noexcept {
  return udp_send(socket, fd, message_of(parts, count, to, to_size), flags);
}

}  // namespace farcall::preload
