// SPDX-License-Identifier: Apache-2.0
//
// Hooks: several messages with one call.
#include <sys/socket.h>

#include <algorithm>
#include <type_traits>

#include "preload/address.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/hooked_call.hpp"
#include "preload/opened.hpp"
#include "preload/real.hpp"
#include "preload/udp/calls.hpp"

namespace farcall::preload {

void hand_back_passed(const msghdr& message) noexcept {
  if (is_no_address(message.msg_control) || message.msg_controllen < sizeof(cmsghdr)) return;
  const auto* const begin = static_cast<const unsigned char*>(message.msg_control);
  for (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(head))) {
    const auto before =
        static_cast<std::size_t>(reinterpret_cast<const unsigned char*>(head) - begin);
    // The kernel refuses it.
    if (head->cmsg_len < CMSG_LEN(0) || head->cmsg_len > message.msg_controllen - before) return;
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::copy_n(CMSG_DATA(head) + i * sizeof fd, sizeof fd,
                  reinterpret_cast<unsigned char*>(&fd));
      forget_opened(fd);
      if (Side* side = find_side(fd)) hand_back(*side, fd, Reason::passed);
      if (UdpSocket* udp = find_udp(fd)) udp_leave(*udp);
      leave_to_kernel(fd);
    }
  }
}

namespace {

using Recvmmsg = int(int, mmsghdr*, unsigned, int, timespec*);
using Sendmmsg = int(int, mmsghdr*, unsigned, int);

// The kernel's own call, seen as one that moves all their bytes.
template <class Function>
struct ManyCall {
  Function* function;
  int fd;
  mmsghdr* messages;
  unsigned count;
  int flags;
  timespec* timeout;
  int moved;  // messages

  static ssize_t make(const void* pointer) {
    auto* const self = static_cast<ManyCall*>(const_cast<void*>(pointer));
    if constexpr (std::is_same_v<Function, Recvmmsg>)
      self->moved =
          self->function(self->fd, self->messages, self->count, self->flags, self->timeout);
    else
      self->moved = self->function(self->fd, self->messages, self->count, self->flags);
    ssize_t bytes = self->moved < 0 ? -1 : 0;
    for (int i = 0; i < self->moved; ++i) bytes += self->messages[i].msg_len;
    return bytes;
  }
  [[nodiscard]] Call as_one() const noexcept {
    return {.fd = fd,
            .parts = messages[0].msg_hdr.msg_iov,
            .count = messages[0].msg_hdr.msg_iovlen,
            .flags = flags,
            .libc_call = make,
            .arguments = this};
  }
};

// Writes back what is left of the time limit; false if nothing is.
bool time_is_left(std::int64_t deadline, timespec& time) noexcept {
  const std::int64_t left = std::max<std::int64_t>(deadline - monotonic_ns(), 0);
  time = {.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
  return left != 0;
}

bool has_ended(const Side& side) noexcept {
  const Direction* const in = side.in().control;
  return side.finished.load(std::memory_order_relaxed) ||
         (in != nullptr && in->sender_said.load(std::memory_order_relaxed) != 0);
}

int receive_many(int fd, Side& side, mmsghdr* messages, unsigned count, int flags,
                 timespec* timeout) {
  if (!side.accelerated() && !side.has_messages()) {
    ManyCall<Recvmmsg> many{.function = real::next<"recvmmsg", Recvmmsg>(),
                            .fd = fd,
                            .messages = messages,
                            .count = count,
                            .flags = flags,
                            .timeout = timeout,
                            .moved = 0};
    const ssize_t bytes = receive_from(side, many.as_one());
    if (bytes != kThrowsAway) {
      if (bytes < 0 || many.moved != 0) return many.moved != 0 ? many.moved : -1;
      // It was accelerated just now, and the first has come from the ring.
      messages[0].msg_len = static_cast<unsigned>(bytes);
      return 1;
    }
  }
  constexpr std::int64_t kLongest = INT64_MAX / 4;
  std::int64_t deadline = 0;
  if (timeout != nullptr)
    deadline = monotonic_ns() +
               std::min<std::int64_t>(timeout->tv_sec, kLongest / 1'000'000'000) * 1'000'000'000 +
               timeout->tv_nsec;
  // The kernel tells of an error before it looks for messages.
  if (has_ended(side))
    if (const int error = take_pending_error(side, fd); error != 0)
      return static_cast<int>(with_errno(-error));
  unsigned done = 0;
  while (done < count) {
    const ssize_t got =
        receive_one(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE, done != 0);
    if (got < 0) {
      if (done != 0) keep_error(side, errno);
      break;
    }
    messages[done++].msg_len = static_cast<unsigned>(got);
    if ((flags & MSG_WAITFORONE) != 0) flags |= MSG_DONTWAIT;
    // The kernel looks at the time after each message, too, and only then.
    if (timeout != nullptr && !time_is_left(deadline, *timeout)) break;
  }
  return done != 0 ? static_cast<int>(done) : -1;
}

int send_many(int fd, Side& side, mmsghdr* messages, unsigned count, int flags) {
  const bool one_by_one = side.accelerated() || side.has_messages();
  if (!one_by_one || side.corked.load(std::memory_order_relaxed)) {
    ManyCall<Sendmmsg> many{.function = real::next<"sendmmsg", Sendmmsg>(),
                            .fd = fd,
                            .messages = messages,
                            .count = count,
                            .flags = flags,
                            .timeout = nullptr,
                            .moved = -1};
    const bool has_control = std::any_of(messages, messages + count, [](const mmsghdr& message) {
      return message.msg_hdr.msg_controllen != 0;
    });
    send_by_kernel(side, many.as_one(), afterwards(side, has_control));
    return many.moved;
  }
  constexpr unsigned kMost = 1024;  // as the kernel
  unsigned done = 0;
  while (done < std::min(count, kMost)) {
    const msghdr& message = messages[done].msg_hdr;
    const ssize_t sent = send_one(fd, &message, flags, done != 0);
    if (sent < 0) break;
    messages[done++].msg_len = static_cast<unsigned>(sent);
    // What follows would come in the middle of this one.
    if (static_cast<std::size_t>(sent) < bytes_in(message.msg_iov, message.msg_iovlen)) break;
  }
  return done != 0 || count == 0 ? static_cast<int>(done) : -1;
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

int recvmmsg(int fd, mmsghdr* messages, unsigned count, int flags, timespec* timeout) {
  Side* const side = find_side(fd);
  UdpSocket* const udp = side == nullptr ? udp_called(fd) : nullptr;
  if ((side == nullptr && udp == nullptr) || count == 0 || is_no_address(messages) ||
      is_bad_time(timeout)) [[likely]]
    return real::next<"recvmmsg", Recvmmsg>()(fd, messages, count, flags, timeout);
  if (side != nullptr) return receive_many(fd, *side, messages, count, flags, timeout);
  return udp_receive_many(*udp, fd, messages, count, flags, timeout);
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  const bool known = count != 0 && !is_no_address(messages);
  for (unsigned i = 0; i < count && known; ++i)
    if (messages[i].msg_hdr.msg_controllen != 0) hand_back_passed(messages[i].msg_hdr);
  if (Side* const side = find_side(fd); side != nullptr && known)
    return send_many(fd, *side, messages, count, flags);
  if (find_udp(fd) == nullptr || !known) [[likely]]
    return real::next<"sendmmsg", Sendmmsg>()(fd, messages, count, flags);
  return each_of(messages, std::min(count, kMostSent),
                 [&](msghdr& message) { return sendmsg(fd, &message, flags); });
}

}  // extern "C"
