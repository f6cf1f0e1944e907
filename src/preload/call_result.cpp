// SPDX-License-Identifier: Apache-2.0
#include "preload/call_result.hpp"

#include <poll.h>

#include <algorithm>

#include "preload/log.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

std::int64_t time_limit(int fd, int option) noexcept {
  timeval limit{};
  socklen_t size = sizeof limit;
  kernel(SYS_getsockopt, fd, SOL_SOCKET, option, &limit, &size);
  return limit.tv_sec * 1'000'000'000 + limit.tv_usec * 1'000;
}

// In poll(), since that is ended by every signal that is handled, whatever SA_RESTART says.
bool sleep_for_rest(const Call& call, short events) noexcept(false) {
  const std::int64_t longest = time_limit(call.fd, events == POLLIN ? SO_RCVTIMEO : SO_SNDTIMEO);
  const std::int64_t left = std::max<std::int64_t>(longest - call.slept, 0);
  const timespec moment{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
  pollfd look{.fd = call.fd, .events = events, .revents = 0};
  const std::int64_t start = monotonic_ns();
  int ready = real::next<"ppoll", int(pollfd*, nfds_t, const timespec*, const sigset_t*)>()(
      &look, 1, longest != 0 ? &moment : nullptr, nullptr);
  if (ready < 0 && errno == EINVAL)
    ready =
        static_cast<int>(with_errno(select_one(call.fd, events, longest != 0 ? &moment : nullptr)));
  call.slept += monotonic_ns() - start;
  if (ready == 0) errno = EAGAIN;
  return ready > 0;
}

ssize_t at_end(Side& side, int fd, ssize_t result) noexcept {
  if (result != 0) return result;
  // This very call may have taken it, before it slept.
  if (const int error = take_error_to_receive(side); error != 0) return fail(-error);
  // The peer has died and left bytes that cannot be recovered.
  const bool lost = !side.reset_told && side.in().control != nullptr &&
                    side.receiver.reclaim_unfinished(side.in());
  if (!lost && !is_reset(side, fd)) return result;
  reset_is_told(side, fd);
  return fail(-ECONNRESET);
}

ssize_t broken(Side& side, int fd) noexcept {
  if (side.broken_told.exchange(true)) return fail(-ECONNRESET);
  log(LogLevel::warn, "descriptor %d: the peer breaks the protocol", fd);
  const linger now{.l_onoff = 1, .l_linger = 0};
  kernel(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  kernel(SYS_shutdown, fd, SHUT_RDWR);
  note_reason(side, Reason::broken);
  return fail(-ECONNRESET);
}

ssize_t call_elsewhere(const Call& call, Guard& guard) noexcept(false) {
  guard.unlock();
  return find_side(call.fd) == nullptr ? call.libc_call(call.arguments) : fail(-EBADF);
}

bool has_bytes(Side& side, int fd) noexcept {
  return (side.in().control != nullptr &&
          side.receiver.next(side.in()).kind == Receiver::Next::ring) ||
         kernel_queued(fd) > 0;
}

}  // namespace farcall::preload
