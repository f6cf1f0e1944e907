// SPDX-License-Identifier: Apache-2.0
//
// Hooks: bytes between pipes or files and sockets.
#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>

#include "preload/hooked_call.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

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

// No point of cancellation, and that nobody reads it a write tells.
void wait_for_room(int pipe) noexcept {
  pollfd room{.fd = pipe, .events = POLLOUT, .revents = 0};
  if (kernel(SYS_ppoll, &room, 1, nullptr, nullptr, 0) == -EINVAL)
    select_one(pipe, POLLOUT, nullptr);
}

// What has been taken out of a connection, and cannot be put back: where somebody else has taken
// the pipe's room meanwhile, it is waited for. Zero, or -1 where nobody reads the pipe any more.
int write_all(int pipe, const std::byte* bytes, std::size_t size) {
  while (size != 0) {
    const long written = kernel(SYS_write, pipe, bytes, size);
    if (written > 0) {
      bytes += written;
      size -= static_cast<std::size_t>(written);
    } else if (written == -EAGAIN) {
      wait_for_room(pipe);
    } else if (written != -EINTR) {
      return static_cast<int>(with_errno(written));
    }
  }
  return 0;
}

// splice() from an accelerated connection: copies. Moved by the kernel, bytes would pass those of
// the ring, and a byte that is not the program's could not be taken out. They are taken at once, as
// others may receive, too; then there is room for them in the pipe, unless others write to it.
ssize_t splice_by_hand(int in, Side& side, int pipe, std::size_t size, bool may_wait) {
  std::byte buffer[4096];  // stacks may be small; a pipe that has room has it for a page
  std::size_t done = 0;
  while (done < size) {
    // The kernel looks at the pipe first, too.
    const int room = has_room(pipe, may_wait && done == 0);
    if (room <= 0) {
      if (done != 0) return static_cast<ssize_t>(done);
      return room < 0 ? room : (errno = EAGAIN, -1);
    }
    const std::size_t most = std::min(size - done, sizeof buffer);
    // Of a TCP socket bytes are waited for whatever the call says of the pipe.
    const bool waits = done == 0 && (may_wait || side.kind == Kind::tcp);
    const int flags = waits ? 0 : MSG_DONTWAIT;
    const iovec part = part_of(buffer, most);
    const auto bound = bind(real::next<"recv", Recv>(), in, buffer, most, flags);
    const ssize_t got = receive_from(side, call(in, &part, 1, flags, bound));
    if (got < 0 && done != 0) keep_error(side, errno);
    if (got <= 0) return done != 0 ? static_cast<ssize_t>(done) : got;
    if (write_all(pipe, buffer, static_cast<std::size_t>(got)) != 0)
      return done != 0 ? static_cast<ssize_t>(done) : -1;
    done += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < most) break;  // there was no more
  }
  return static_cast<ssize_t>(done);
}

bool is_pipe(int fd) noexcept {
  struct stat status {};
  return kernel(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) == 0 && S_ISFIFO(status.st_mode);
}

}  // namespace
}  // namespace farcall::preload

using namespace farcall::preload;

extern "C" {

ssize_t sendfile(int out, int in, off_t* offset, size_t size) {
  using Sendfile = ssize_t(int, int, off_t*, std::size_t);
  Sendfile* const next = real::next<"sendfile", Sendfile>();
  // From a socket, only into a pipe; one that counts its messages says so there.
  if (find_side(in) != nullptr && offset == nullptr)
    return splice(in, nullptr, out, nullptr, size, 0);
  if (UdpSocket* const udp = find_udp(out)) udp_leave(*udp);
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
  if (from != nullptr && from->has_messages())
    if (const Guard guard(from->receive_lock); guard) from->receiver.stop_counting();
  for (const int fd : {in, out})
    if (UdpSocket* const udp = find_udp(fd)) udp_leave(*udp);
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
  const bool may_wait =
      (flags & SPLICE_F_NONBLOCK) == 0 && (kernel(SYS_fcntl, out, F_GETFL, 0) & O_NONBLOCK) == 0;
  return splice_by_hand(in, *from, out, size, may_wait);
}

}  // extern "C"
