// SPDX-License-Identifier: Apache-2.0
//
// Hooks: the calls that move bytes.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "preload/address.hpp"
#include "preload/connection.hpp"
#include "preload/epoll.hpp"
#include "preload/handback.hpp"
#include "preload/real.hpp"
#include "preload/udp_calls.hpp"
#include "preload/upgrade.hpp"

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
      if (Side* side = find_side(fd)) hand_back(*side, fd, Reason::passed);
      if (UdpSocket* udp = find_udp(fd)) udp_leave(*udp);
      leave_to_kernel(fd);
    }
  }
}

std::size_t bytes_in(const iovec* parts, std::size_t count) noexcept {
  return Span(parts, count).left();
}

// MSG_TRUNC throws bytes of a stream away: no pointer of the program is looked at.
ssize_t discard(Side& side, const Call& whole) {
  std::byte scratch[4096];
  const std::size_t wanted = bytes_in(whole.parts, whole.count);
  std::size_t done = 0;
  while (done < wanted) {
    const std::size_t size = std::min(wanted - done, sizeof scratch);
    int flags = whole.flags & ~MSG_TRUNC;
    if (done != 0 && (flags & MSG_WAITALL) == 0) flags |= MSG_DONTWAIT;
    const iovec part = part_of(scratch, size);
    const auto bound = bind(real::next<"recv", Recv>(), whole.fd, scratch, size, flags);
    const ssize_t got = receive_from(side, call(whole.fd, &part, 1, flags, bound));
    if (got < 0 && done == 0) return got;
    if (got < 0) keep_error(side, errno);
    if (got <= 0) break;
    done += static_cast<std::size_t>(got);
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
bool has_ended(int fd) noexcept {
  pollfd look{.fd = fd, .events = POLLRDHUP, .revents = 0};
  timespec none{};
  return kernel(SYS_ppoll, &look, 1, &none, nullptr, 0) > 0;
}

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
  return receive_from(side, whole);
}

// Calls that the kernel carries out in as many messages as it likes.
void leave_uncounted(Side* side, int fd) noexcept {
  if (side != nullptr && side->has_messages()) hand_back(*side, fd, Reason::option);
}

// Where nothing is wanted no message is read, and by writev() none is sent.
bool moves_nothing(const Side* side, const iovec* parts, std::size_t count) noexcept {
  return side != nullptr && side->has_messages() && !has_bad_part(parts, count) &&
         bytes_in(parts, count) == 0;
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
  if ((whole.flags & (MSG_TRUNC | MSG_WAITALL)) != 0 &&
      (whole.flags & (MSG_OOB | MSG_ERRQUEUE)) == 0 && side.accelerated()) [[unlikely]] {
    if ((whole.flags & kLookAtAll) == kLookAtAll) return peek_at_all(side, whole);
    if ((whole.flags & MSG_TRUNC) != 0) return discard(side, whole);
  }
  return receive_from(side, whole);
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

ssize_t receive_message(int fd, Side& side, msghdr* message, int flags) {
  MessageCall made{.fd = fd, .asked = message, .flags = flags, .answer = {}, .by_kernel = false};
  Ancillary with{.control = message->msg_control,
                 .room = message->msg_controllen,
                 .wanted = flags & MSG_CMSG_CLOEXEC};
  const ssize_t got = receive_stream(side, {.fd = fd,
                                            .parts = message->msg_iov,
                                            .count = message->msg_iovlen,
                                            .flags = flags,
                                            .as_it_is = MessageCall::make,
                                            .arguments = &made,
                                            .with = side.kind == Kind::tcp ? nullptr : &with});
  if (got < 0) return got;
  if (made.by_kernel) {
    message->msg_namelen = made.answer.msg_namelen;
    message->msg_controllen = made.answer.msg_controllen;
    message->msg_flags = made.answer.msg_flags;
  } else {
    message->msg_namelen = message->msg_name == nullptr || (got == 0 && !with.is_message)
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

// --- several messages with one call

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
            .as_it_is = make,
            .arguments = this};
  }
};

bool is_bad_time(const timespec* time) noexcept {
  return time != nullptr && (is_no_address(time) || time->tv_sec < 0 || time->tv_nsec < 0 ||
                             time->tv_nsec >= 1'000'000'000);
}

// Writes back what is left of the time limit; false if nothing is.
bool time_is_left(std::int64_t deadline, timespec& time) noexcept {
  const std::int64_t left = std::max<std::int64_t>(deadline - now_ns(), 0);
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
    if (bytes < 0 || many.moved != 0) return many.moved != 0 ? many.moved : -1;
    // It was accelerated just now, and the first has come from the ring.
    messages[0].msg_len = static_cast<unsigned>(bytes);
    return 1;
  }
  constexpr std::int64_t kLongest = INT64_MAX / 4;
  std::int64_t deadline = 0;
  if (timeout != nullptr)
    deadline = now_ns() +
               std::min<std::int64_t>(timeout->tv_sec, kLongest / 1'000'000'000) * 1'000'000'000 +
               timeout->tv_nsec;
  // The kernel tells of an error before it looks for messages.
  if (has_ended(side))
    if (const int error = take_pending_error(side, fd); error != 0)
      return static_cast<int>(with_errno(-error));
  unsigned done = 0;
  while (done < count) {
    const ssize_t got = recvmsg(fd, &messages[done].msg_hdr, flags & ~MSG_WAITFORONE);
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

// Bytes of a unix stream may have come with descriptors.
Afterwards afterwards(const Side& side, bool has_control) noexcept {
  return has_control && is_unix(side.kind) ? Afterwards::ring_when_taken : Afterwards::ring;
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
    const ssize_t sent = sendmsg(fd, &message, flags);
    if (sent < 0) break;
    messages[done++].msg_len = static_cast<unsigned>(sent);
    // What follows would come in the middle of this one.
    if (static_cast<std::size_t>(sent) < bytes_in(message.msg_iov, message.msg_iovlen)) break;
  }
  return done != 0 || count == 0 ? static_cast<int>(done) : -1;
}

// --- between pipes and streams

// As the kernel where a pipe has no reader.
ssize_t broken_pipe() noexcept {
  kernel(SYS_tgkill, kernel(SYS_getpid), kernel(SYS_gettid), SIGPIPE);
  errno = EPIPE;
  return -1;
}

// One for which a write of a page does not wait. As poll(): 0 is no.
int has_room(int pipe, bool wait) {
  using Poll = int(pollfd*, nfds_t, int);
  pollfd room{.fd = pipe, .events = POLLOUT, .revents = 0};
  const int ready = real::next<"poll", Poll>()(&room, 1, wait ? -1 : 0);
  if (ready > 0 && (room.revents & POLLERR) != 0) return static_cast<int>(broken_pipe());
  return ready;
}

// Into a pipe that has room, without waiting. Negative errno.
long write_now(int pipe, const std::byte* bytes, std::size_t size) noexcept {
  const iovec part = part_of(bytes, size);
  const long written = kernel(SYS_pwritev2, pipe, &part, 1, -1L, -1L, RWF_NOWAIT);
  if (written != -EOPNOTSUPP && written != -ENOSYS && written != -EINVAL) return written;
  // Pipes of older kernels cannot be asked not to wait.
  constexpr std::size_t kPage = 4096;
  return kernel(SYS_write, pipe, bytes, std::min(size, kPage));
}

// splice() from an accelerated connection: copies. Moved by the kernel, bytes would pass those of
// the ring, and a byte that is not the program's could not be taken out.
ssize_t splice_by_hand(int in, Side& side, int pipe, std::size_t size, bool may_wait) {
  std::byte buffer[16384];
  const auto receive = [&](std::size_t most, int flags) {
    const iovec part = part_of(buffer, most);
    const auto bound = bind(real::next<"recv", Recv>(), in, buffer, most, flags);
    return receive_from(side, call(in, &part, 1, flags, bound));
  };
  std::size_t done = 0;
  while (done < size) {
    // The kernel looks at the pipe first, too.
    const int room = has_room(pipe, may_wait && done == 0);
    if (room < 0) return done != 0 ? static_cast<ssize_t>(done) : -1;
    long written = -EAGAIN;
    if (room != 0) {
      const std::size_t most = std::min(size - done, sizeof buffer);
      const ssize_t seen = receive(most, MSG_PEEK | (done != 0 ? MSG_DONTWAIT : 0));
      if (seen < 0 && done != 0) keep_error(side, errno);
      if (seen <= 0) return done != 0 ? static_cast<ssize_t>(done) : seen;
      written = write_now(pipe, buffer, static_cast<std::size_t>(seen));
    }
    // Somebody else has taken the room.
    if (written == -EAGAIN && may_wait && done == 0) continue;
    if (written == -EPIPE) return done != 0 ? static_cast<ssize_t>(done) : (errno = EPIPE, -1);
    if (written < 0) return done != 0 ? static_cast<ssize_t>(done) : with_errno(written);
    done += static_cast<std::size_t>(written);
    // The peer may be about to send them again, through the kernel.
    constexpr std::int64_t kLongest = 3'000'000'000;
    const std::int64_t start = now_ns();
    for (auto left = static_cast<std::size_t>(written); left != 0;) {
      const ssize_t taken = receive(left, MSG_DONTWAIT);
      if (taken > 0)
        left -= static_cast<std::size_t>(taken);
      else if (taken == 0 || (errno != EAGAIN && errno != EINTR) || now_ns() - start > kLongest)
        break;
      else
        kernel(SYS_sched_yield);
    }
  }
  return static_cast<ssize_t>(done);
}

bool is_pipe(int fd) noexcept {
  struct stat status {};
  return kernel(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISFIFO(status.st_mode);
}

// --- sending

// The ring holds nothing back; and bytes that wait in the kernel for more to come would keep those
// of the ring waiting behind them.
int without_more(const Side& side, int flags) noexcept {
  return side.accelerated() && !side.corked.load(std::memory_order_relaxed) ? flags & ~MSG_MORE
                                                                            : flags;
}

// The flags of a sending call as they are from here on.
int flags_for(Side& side, int flags) noexcept {
  // What is urgent is counted by the sender, but the receiver may never read it.
  if ((flags & MSG_OOB) != 0 && end_candidacy(side)) note_reason(side, Reason::urgent);
  return (flags & MSG_MORE) == 0 ? flags : without_more(side, flags);
}

// To send to an address is an error where a unix stream is connected; TCP overlooks it.
bool is_refused_name(const Side& side, const void* name) noexcept {
  return name != nullptr && side.kind == Kind::unix_stream;
}

ssize_t send_stream(Side& side, const Call& whole) {
  cancellation_point(side);
  if (side.corked.load(std::memory_order_relaxed)) [[unlikely]]
    return send_by_kernel(side, whole, Afterwards::ring);
  return send_to(side, whole);
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
  return receive_stream(*side, call(fd, &part, 1, flags, bound));
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
  Side* const side = find_side(fd);
  UdpSocket* const udp = side == nullptr ? find_udp(fd) : nullptr;
  if ((side == nullptr && udp == nullptr) || count == 0 || is_no_address(messages) ||
      is_bad_time(timeout)) [[likely]]
    return real::next<"recvmmsg", Recvmmsg>()(fd, messages, count, flags, timeout);
  if (side != nullptr) return receive_many(fd, *side, messages, count, flags, timeout);
  return udp_receive_many(*udp, fd, messages, count, flags, timeout);
}

ssize_t read(int fd, void* buffer, size_t size) {
  Read* const next = real::next<"read", Read>();
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_length(size)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size);
    const iovec part = part_of(buffer, size);
    return udp_receive(*udp, fd, &part, 1, 0);
  }
  const iovec part = part_of(buffer, size);
  if (moves_nothing(side, &part, 1)) return next(fd, buffer, size);
  const auto bound = bind(next, fd, buffer, size);
  return receive_stream(*side, call(fd, &part, 1, 0, bound));
}

ssize_t readv(int fd, const iovec* parts, int count) {
  Readv* const next = real::next<"readv", Readv>();
  Side* const side = find_side(fd);
  UdpSocket* const udp = side == nullptr ? find_udp(fd) : nullptr;
  if ((side == nullptr && udp == nullptr) || is_bad_vector(parts, count)) [[likely]]
    return next(fd, parts, count);
  if (udp != nullptr) return udp_receive(*udp, fd, parts, static_cast<std::size_t>(count), 0);
  if (moves_nothing(side, parts, static_cast<std::size_t>(count))) return next(fd, parts, count);
  const auto bound = bind(next, fd, parts, count);
  return receive_stream(*side, call(fd, parts, static_cast<std::size_t>(count), 0, bound));
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
  flags = flags_for(*side, flags);
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags);
  return send_stream(*side, call(fd, &part, 1, flags, bound));
}

ssize_t sendto(int fd, const void* buffer, size_t size, int flags, const sockaddr* to,
               socklen_t to_size) {
  Sendto* const next = real::next<"sendto", Sendto>();
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_name(to, to_size)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr) [[likely]]
      return next(fd, buffer, size, flags, to, to_size);
    const iovec part = part_of(buffer, size);
    return udp_send(*udp, fd, &part, 1, flags, to, to_size);
  }
  flags = flags_for(*side, flags);
  const iovec part = part_of(buffer, size);
  const auto bound = bind(next, fd, buffer, size, flags, to, to_size);
  const Call whole = call(fd, &part, 1, flags, bound);
  if (is_refused_name(*side, to)) return send_by_kernel(*side, whole, Afterwards::ring);
  return send_stream(*side, whole);
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  Sendmsg* const next = real::next<"sendmsg", Sendmsg>();
  if (!is_no_address(message) && message->msg_controllen != 0) [[unlikely]]
    hand_back_passed(*message);
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_message(message) ||
      is_bad_name(message->msg_name, message->msg_namelen)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
    if (udp == nullptr || is_bad_message(message)) [[likely]]
      return next(fd, message, flags);
    return udp_send(*udp, fd, *message, flags);
  }
  flags = flags_for(*side, flags);
  const auto bound = bind(next, fd, message, flags);
  const Call whole = call(fd, message->msg_iov, message->msg_iovlen, flags, bound);
  // What accompanies the bytes is for the kernel.
  if (message->msg_controllen != 0 || is_refused_name(*side, message->msg_name))
    return send_by_kernel(*side, whole, afterwards(*side, message->msg_controllen != 0));
  return send_stream(*side, whole);
}

int sendmmsg(int fd, mmsghdr* messages, unsigned count, int flags) {
  const bool known = count != 0 && !is_no_address(messages);
  for (unsigned i = 0; i < count && known; ++i)
    if (messages[i].msg_hdr.msg_controllen != 0) hand_back_passed(messages[i].msg_hdr);
  if (Side* const side = find_side(fd); side != nullptr && known)
    return send_many(fd, *side, messages, count, flags);
  if (find_udp(fd) == nullptr || !known) [[likely]]
    return real::next<"sendmmsg", Sendmmsg>()(fd, messages, count, flags);
  return each_of(messages, count, [&](msghdr& message) { return sendmsg(fd, &message, flags); });
}

ssize_t write(int fd, const void* buffer, size_t size) {
  Write* const next = real::next<"write", Write>();
  Side* const side = find_side(fd);
  if (side == nullptr || is_bad_length(size)) [[likely]] {
    UdpSocket* const udp = find_udp(fd);
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
  Readv* const next = real::next<"writev", Readv>();
  Side* const side = find_side(fd);
  UdpSocket* const udp = side == nullptr ? find_udp(fd) : nullptr;
  if ((side == nullptr && udp == nullptr) || is_bad_vector(parts, count)) [[likely]]
    return next(fd, parts, count);
  if (udp != nullptr) return udp_send(*udp, fd, parts, static_cast<std::size_t>(count), 0);
  if (moves_nothing(side, parts, static_cast<std::size_t>(count))) return next(fd, parts, count);
  const auto bound = bind(next, fd, parts, count);
  return send_stream(*side, call(fd, parts, static_cast<std::size_t>(count), 0, bound));
}

ssize_t preadv2(int fd, const iovec* parts, int count, off_t offset, int flags) {
  using Preadv = ssize_t(int, const iovec*, int, off_t, int);
  const bool here = find_side(fd) != nullptr || find_udp(fd) != nullptr;
  if (!here || offset != -1 || count < 0 || (flags & ~RWF_NOWAIT) != 0) [[likely]]
    return real::next<"preadv2", Preadv>()(fd, parts, count, offset, flags);
  if (flags == 0) return readv(fd, parts, count);
  if (moves_nothing(find_side(fd), parts, static_cast<std::size_t>(count))) return 0;
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
  if (moves_nothing(find_side(fd), parts, static_cast<std::size_t>(count))) return 0;
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
  leave_uncounted(side, out);
  if (side == nullptr || side->has_messages()) [[likely]]
    return next(out, in, offset, size);
  const auto bound = bind(next, out, in, offset, size);
  return send_by_kernel(*side, call(out, nullptr, 0, 0, bound), Afterwards::ring);
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
  leave_uncounted(from, in);
  leave_uncounted(to, out);
  const auto is_stream = [](const Side* side) { return side != nullptr && !side->has_messages(); };
  if (!is_stream(from) && !is_stream(to)) [[likely]]
    return next(in, in_offset, out, out_offset, size, flags);
  // As without_more().
  if (to != nullptr && without_more(*to, MSG_MORE) == 0)
    flags &= ~static_cast<unsigned>(SPLICE_F_MORE);
  const auto bound = bind(next, in, in_offset, out, out_offset, size, flags);
  if (is_stream(to)) return send_by_kernel(*to, call(out, nullptr, 0, 0, bound), Afterwards::ring);
  if (!is_stream(from)) return next(in, in_offset, out, out_offset, size, flags);
  if (!from->accelerated()) return splice_from_kernel(*from, call(in, nullptr, 0, 0, bound));
  constexpr unsigned kKnown = SPLICE_F_MOVE | SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_GIFT;
  // The kernel refuses it without taking anything.
  if (in_offset != nullptr || out_offset != nullptr || (flags & ~kKnown) != 0 || !is_pipe(out))
    return next(in, in_offset, out, out_offset, size, flags);
  const long status = kernel(SYS_fcntl, out, F_GETFL, 0);
  const bool may_wait = (flags & SPLICE_F_NONBLOCK) == 0 && (status & O_NONBLOCK) == 0;
  return splice_by_hand(in, *from, out, size, may_wait);
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
