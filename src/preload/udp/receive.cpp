// SPDX-License-Identifier: Apache-2.0
//
// Receiving datagrams, from memory or from the kernel.
#include <fcntl.h>

#include "preload/call_result.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/udp/take.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kKernelEvery = 64;  // receives from memory
constexpr std::uint32_t kBusyAfter = 4;     // empty receives in a row: then the caller spins
constexpr std::uint64_t kLookTicks = 20 * kTicksPerMicrosecond;  // between looks of a spinner
constexpr std::uint32_t kMostPause = 1024;

ssize_t by_kernel(int fd, msghdr& message, int flags) noexcept {
  return real::next<"recvmsg", ssize_t(int, msghdr*, int)>()(fd, &message, flags);
}

bool nonblocking(UdpSocket& socket, int fd, int flags) noexcept {
  if ((flags & MSG_DONTWAIT) != 0) return true;
  if (!socket.flags_known) {
    const long status = kernel(SYS_fcntl, fd, F_GETFL, 0);
    socket.nonblocking = status >= 0 && (status & O_NONBLOCK) != 0;
    socket.flags_known = true;
  }
  return socket.nonblocking;
}

// What has been read of flows to which nothing is added.
void end_read_flows(UdpSocket& socket) noexcept {
  socket.each_in([&](InFlow& flow) {
    if (!flow.receiver.looks_ready()) udp_end_if_read(socket, flow);
  });
}

// The first calls, until there are flows: plain, but for being findable.
void count_receive(UdpSocket& socket, int fd) noexcept {
  ++socket.receives;
  if ((socket.receives < socket.next_publish && socket.guest < 0) ||
      socket.kernel_only.load(std::memory_order_relaxed))
    return;
  if (socket.listener < 0)
    udp_publish(socket, fd);
  else
    udp_take_flows(socket, fd);
  // Each look costs a system call: at first with every call, then with every sixteenth, and hardly
  // ever while there are flows; those who sleep or spin look then.
  const std::uint32_t pause = socket.listener < 0    ? socket.receives
                              : socket.in_end != 0   ? kMostPause
                              : socket.receives < 64 ? 1
                                                     : 16;
  socket.next_publish = socket.receives + std::min(pause, kMostPause);
}

// Who has received something is awake, and will watch before it sleeps.
ssize_t received(UdpSocket& socket, int fd, ssize_t result, int flags) noexcept {
  if (result >= 0 && socket.hot && (flags & MSG_PEEK) == 0) udp_unwatch_all(socket, fd);
  return with_errno(result);
}

// The kernel tells of an error before anything that can be read.
int take_error(UdpSocket& socket, int fd) noexcept {
  if (!socket.may_have_error.load(std::memory_order_relaxed)) [[likely]]
    return 0;
  socket.may_have_error.store(false, std::memory_order_relaxed);
  int error = 0;
  socklen_t size = sizeof error;
  return kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? 0 : error;
}

// Before a call that the kernel carries out alone, and without the lock: what was sent through
// memory is looked at, as nothing else does. True if a signal ends the call.
bool settle_before(UdpSocket& socket, int fd, int flags, Guard& guard) noexcept {
  if (detail::unsettled.load(std::memory_order_relaxed) == 0 &&
      detail::udp_unsettled.load(std::memory_order_relaxed) == 0) {
    guard.unlock();
    return false;
  }
  const bool waits = !nonblocking(socket, fd, flags);
  guard.unlock();
  if (!waits) {
    udp_check_at_times(socket, fd);
    return false;
  }
  if (ends_receive(fd, udp_check_receivers(socket, fd, true), false)) return true;
  settle_before_sleep();
  return false;
}

// Waits in the kernel.
ssize_t park(UdpSocket& socket, int fd, msghdr& message, int flags, Guard& guard) noexcept {
  udp_look_at_door(socket, fd);
  // What the kernel has, the call below brings; only what is in memory comes before it.
  udp_watch_all(socket);
  bool kernel_first = false;
  ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
  if (result == -EAGAIN && kernel_first) result = udp_take_now(socket, fd, message, flags);
  if (result != -EAGAIN) return received(socket, fd, result, flags);
  const std::uint32_t generation = socket.generation;
  // Whoever leaves its sleep by a jump counts for good: then all comes by the kernel.
  ++socket.sleeping;
  guard.unlock();
  const bool ends = ends_receive(fd, udp_check_receivers(socket, fd, true), false);
  if (!ends) settle_before_sleep();
  sockaddr_in6 name;
  if (ends)
    result = with_errno(-EINTR);
  else
    result = named_receive(message, name,
                           [&](msghdr& asked) noexcept { return by_kernel(fd, asked, flags); });
  const int error = errno;
  if (guard.lock() && socket.generation == generation) {
    if (socket.sleeping != 0) --socket.sleeping;
    socket.looked_at = 0;
    if (result >= 0 && (flags & MSG_PEEK) == 0)
      udp_note_came(socket, fd, name, message, static_cast<std::size_t>(result));
    if (!ends) socket.patience.slept();
  }
  guard.unlock();
  errno = error;
  return result;
}

// Waits: awake for a while if the last datagram came from memory, then in the kernel.
ssize_t wait_and_receive(UdpSocket& socket, int fd, msghdr& message, int flags,
                         Guard& guard) noexcept {
  socket.busy = socket.polls_here = false;
  socket.waits_here = true;
  if (socket.hot) {
    udp_unwatch_all(socket, fd);
    const std::uint32_t generation = socket.generation;
    guard.unlock();
    // Whoever sees one keeps the lock.
    const auto look = [&]() noexcept {
      if (!guard.try_lock()) return false;
      if (socket.generation != generation || udp_looks_ready(socket)) return true;
      guard.unlock();
      return false;
    };
    const Stayed ready =
        socket.patience.stay_awake(look, [&]() noexcept { return udp_senders_processor(socket); });
    // Somebody may have closed it in the meantime: the kernel says what that means.
    if ((!ready && !guard.lock()) || socket.generation != generation) {
      guard.unlock();
      return by_kernel(fd, message, flags);
    }
    bool kernel_first = false;
    if (ready) {
      const ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
      if (result != -EAGAIN) return with_errno(result);
    } else if (ends_receive(fd, ready.interruption, false)) {
      udp_watch_all(socket);
      return with_errno(-EINTR);
    }
  }
  socket.hot = false;
  return park(socket, fd, message, flags, guard);
}

// Whether the program waits next through the library, as far as that can be known.
bool stays_awake(UdpSocket& socket, int fd) noexcept {
  if (is_registered(fd)) return epoll_allows_wake_up(fd);
  if (socket.polls_here) {
    // It has been told that there is something: the kernel must be asked.
    socket.polls_here = socket.busy = false;
    socket.empty_calls = 0;
    return true;
  }
  socket.waits_here = false;
  return false;
}

// Nothing was there. `looked`: all flows are watched, and nothing was in the kernel either.
ssize_t come_back_empty(UdpSocket& socket, int fd, msghdr& message, int flags,
                        bool looked) noexcept {
  const bool awake = stays_awake(socket, fd);
  // A program that keeps coming waits with this call; the kernel need not be asked each time.
  if (++socket.empty_calls >= kBusyAfter) socket.busy = awake;
  if (!looked &&
      (!awake || !socket.busy || now_ticks() - socket.looked_at > kLookTicks ||
       socket.sent_before_look != detail::udp_sent_by_kernel.load(std::memory_order_relaxed) ||
       epoll_told_since(fd, socket.looked_at))) {
    udp_look_at_door(socket, fd);
    const ssize_t result = udp_take_now(socket, fd, message, flags);
    if (result != -EAGAIN) return received(socket, fd, result, flags);
  }
  if (!awake) return with_errno(-EAGAIN);
  udp_unwatch_all(socket, fd);
  // Who spins on the processor that the sender needs waits for the end of its own turn.
  if (socket.busy && udp_last_senders_processor(socket) == this_processor()) {
    kernel(SYS_sched_yield);
    bool kernel_first = false;
    const ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
    if (result != -EAGAIN) return with_errno(result);
  }
  return with_errno(-EAGAIN);
}

}  // namespace

int udp_next_size(UdpSocket& socket) noexcept {
  const Guard guard(socket.receive_lock);
  if (!guard) return -1;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    InFlow& flow = socket.in[(socket.last_in + i) % socket.in_end];
    if (flow.state != InFlow::kFree && flow.receiver.next() == DatagramReceiver::Next::ready)
      return static_cast<int>(flow.receiver.next_length());
  }
  return -1;
}

ssize_t udp_receive(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  if ((flags & MSG_ERRQUEUE) != 0) return by_kernel(fd, message, flags);
  if (message.msg_iovlen > kMostParts) return with_errno(-EMSGSIZE);
  if (message.msg_name != nullptr && static_cast<int>(message.msg_namelen) < 0)
    return with_errno(-EINVAL);
  if (const int kept = udp_take_kept_error(socket); kept != 0) return with_errno(-kept);
  Guard guard(socket.receive_lock);
  if (!guard) return by_kernel(fd, message, flags);
  count_receive(socket, fd);
  if (socket.kernel_only.load(std::memory_order_relaxed)) end_read_flows(socket);
  if (socket.in_end == 0) {
    const bool ends = settle_before(socket, fd, flags, guard);
    const ssize_t result = ends ? with_errno(-EINTR) : by_kernel(fd, message, flags);
    if (result >= 0 && socket.counters != nullptr && (flags & MSG_PEEK) == 0)
      socket.counters->kernel.count(static_cast<std::uint64_t>(result));
    return result;
  }
  if (const int error = take_error(socket, fd); error != 0) [[unlikely]]
    return with_errno(-error);
  bool kernel_first = false;
  ssize_t result = -EAGAIN;
  // What has been sent while we were watching is in the kernel. Now and then it has a turn: then
  // nothing more is put into memory until it has given something.
  if (++socket.ring_receives >= kKernelEvery && udp_kernel_has_something(socket, fd)) {
    socket.kernels_turn = true;
    udp_watch_all(socket);
  }
  bool look = socket.any_in([](const InFlow& flow) { return flow.receiver.watched(); });
  if (!look) {
    result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
    if (result != -EAGAIN) return with_errno(result);
    look = kernel_first;
  }
  if (look) {
    result = udp_take_now(socket, fd, message, flags);
    if (result != -EAGAIN) return received(socket, fd, result, flags);
  }
  if (nonblocking(socket, fd, flags)) {
    if (socket.unsettled.load(std::memory_order_relaxed) != 0) udp_check_at_times(socket, fd);
    return come_back_empty(socket, fd, message, flags, look);
  }
  return wait_and_receive(socket, fd, message, flags, guard);
}

}  // namespace farcall::preload
