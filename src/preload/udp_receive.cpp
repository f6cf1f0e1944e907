// SPDX-License-Identifier: Apache-2.0
//
// Receiving datagrams, from memory or from the kernel.
#include <fcntl.h>

#include "preload/epoll.hpp"
#include "preload/real.hpp"
#include "preload/udp_take.hpp"

namespace farcall::preload {
namespace {

constexpr std::size_t kMostParts = 1024;    // as the kernel: EMSGSIZE beyond
constexpr std::uint32_t kKernelEvery = 64;  // receives from memory
constexpr std::uint32_t kBusyAfter = 4;     // empty receives in a row: then the caller spins
constexpr std::uint64_t kLookTicks = 20 * kTicksPerMicrosecond;  // between looks of a spinner
constexpr std::uint32_t kMostPause = 1024;

ssize_t failed(ssize_t result) noexcept {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

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
  for (std::size_t i = 0; i < socket.in_end; ++i)
    if (socket.in[i].readable() && !socket.in[i].receiver.looks_ready()) {
      const HeldSignals held;
      udp_end_in(socket, socket.in[i]);
    }
  udp_unmap_dead(socket);
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
  return failed(result);
}

ssize_t park(UdpSocket& socket, int fd, msghdr& message, int flags, FrameGuard& guard) noexcept {
  if (socket.listener >= 0 && (socket.guest >= 0 || socket.in_end == 0 || ++socket.looks % 16 == 0))
    udp_take_flows(socket, fd);
  // What the kernel has, the call below brings; only what is in memory comes before it.
  udp_watch_all(socket);
  bool kernel_first = false;
  ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
  if (result == -EAGAIN && kernel_first) result = udp_take_now(socket, fd, message, flags);
  if (result != -EAGAIN) return received(socket, fd, result, flags);
  const std::uint32_t generation = socket.generation;
  udp_enter_wait(socket, socket.sleeping, this_frame());
  guard.unlock();
  const bool ends = udp_check_receivers(socket, fd, true) == Interruption::ends;
  sockaddr_in6 name;
  if (ends)
    result = failed(-EINTR);
  else
    result = named_receive(message, name,
                           [&](msghdr& asked) noexcept { return by_kernel(fd, asked, flags); });
  const int error = errno;
  if (guard.lock() && socket.generation == generation) {
    udp_leave_wait(socket, socket.sleeping);
    if (result >= 0 && (flags & MSG_PEEK) == 0)
      udp_note_came(socket, fd, name, static_cast<std::size_t>(result));
    if (!ends) socket.patience.slept();
  }
  guard.unlock();
  errno = error;
  return result;
}

// Without the lock: a handler in the middle of another call, or one that another thread does not
// give back. All flows are watched, and what is there is taken as whoever holds the lock would.
ssize_t receive_beside(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  using Next = DatagramReceiver::Next;
  // Nobody else holds it so long: it was left behind.
  if (!socket.receive_lock.is_mine()) socket.kernel_only.store(true);
  ssize_t result = -EAGAIN;
  for (int turn = 0; turn < 2 && result == -EAGAIN; ++turn) {
    // seq_cst: pairs with udp_unmap_dead()
    socket.visitors.fetch_add(1);
    bool kernel_first = false;
    for (std::size_t i = 0; i < UdpSocket::kMostFlows && result == -EAGAIN; ++i) {
      InFlow& flow = socket.in[i];
      if (!flow.readable()) continue;
      if (turn == 0) flow.receiver.watch_again();
      DatagramReceiver::Record record;
      const Next next = flow.receiver.next(record);
      kernel_first = kernel_first || next == Next::kernel_first;
      if (next == Next::ready || (next == Next::kernel_first && turn == 1))
        result = udp_take(socket, flow, record, message, flags);
    }
    socket.visitors.fetch_sub(1);
    if (result != -EAGAIN || !kernel_first || turn == 1) break;
    result = static_cast<ssize_t>(kernel(SYS_recvmsg, fd, &message, flags | MSG_DONTWAIT));
  }
  return result != -EAGAIN ? failed(result) : by_kernel(fd, message, flags);
}

// Waits: awake for a while if the last datagram came from memory, then in the kernel.
ssize_t wait_and_receive(UdpSocket& socket, int fd, msghdr& message, int flags,
                         FrameGuard& guard) noexcept {
  socket.busy = socket.polls_here = false;
  socket.waits_here = true;
  if (socket.hot && socket.looking == 0) {
    udp_unwatch_all(socket, fd);
    const std::uint32_t generation = socket.generation;
    udp_enter_wait(socket, socket.looking, this_frame());
    guard.unlock();
    const bool ready =
        socket.patience.stay_awake([&]() noexcept { return udp_looks_ready(socket); },
                                   [&]() noexcept { return udp_last_senders_processor(socket); });
    if (!guard.lock()) return receive_beside(socket, fd, message, flags);
    // Somebody has closed it in the meantime: the kernel says what that means.
    if (socket.generation != generation) {
      guard.unlock();
      return by_kernel(fd, message, flags);
    }
    udp_leave_wait(socket, socket.looking);
    bool kernel_first = false;
    if (ready) {
      const ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
      if (result != -EAGAIN) return failed(result);
    } else if (socket.patience.interruption() == Interruption::ends) {
      udp_watch_all(socket);
      return failed(-EINTR);
    }
  }
  socket.hot = false;
  return park(socket, fd, message, flags, guard);
}

// Whether the program waits next through the library, as far as that can be known.
bool stays_awake(UdpSocket& socket, int fd) noexcept {
  if (is_registered(fd)) return epoll_allows_wake_up(fd);
  if (socket.polls_here.exchange(false)) {
    // It has been told that there is something: the kernel must be asked.
    socket.busy = false;
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
  if (!looked && (!awake || !socket.busy || ticks() - socket.looked_at > kLookTicks ||
                  epoll_told_since(fd, socket.looked_at))) {
    socket.looked_at = ticks();
    if (socket.listener >= 0 && ++socket.looks % 16 == 0) udp_take_flows(socket, fd);
    const ssize_t result = udp_take_now(socket, fd, message, flags);
    if (result != -EAGAIN) return received(socket, fd, result, flags);
  }
  if (!awake) return failed(-EAGAIN);
  udp_unwatch_all(socket, fd);
  // Who spins on the processor that the sender needs waits for the end of its own turn.
  if (socket.busy && udp_last_senders_processor(socket) == this_processor()) {
    kernel(SYS_sched_yield);
    bool kernel_first = false;
    const ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
    if (result != -EAGAIN) return failed(result);
  }
  return failed(-EAGAIN);
}

}  // namespace

void udp_repair_receiving(UdpSocket& socket) noexcept {
  for (InFlow& flow : socket.in)
    if (flow.readable()) flow.receiver.watch_again();
}

bool udp_watch_now(UdpSocket& socket, int fd) noexcept {
  if (socket.listener >= 0 && (socket.guest >= 0 || socket.in_end == 0 || ++socket.looks % 16 == 0))
    udp_take_flows(socket, fd);
  socket.busy = false;
  socket.empty_calls = 0;
  udp_watch_all(socket);
  udp_begin_flows(socket, fd);
  return udp_looks_ready(socket);
}

int udp_next_size(UdpSocket& socket) noexcept {
  const FrameGuard guard(socket.receive_lock);
  if (!guard || socket.in_end == 0) return -1;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    const std::size_t index = (socket.last_in + i) % socket.in_end;
    DatagramReceiver::Record record;
    if (socket.in[index].readable() &&
        socket.in[index].receiver.next(record) == DatagramReceiver::Next::ready)
      return static_cast<int>(record.length);
  }
  return -1;
}

ssize_t udp_receive(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  if ((flags & MSG_ERRQUEUE) != 0) return by_kernel(fd, message, flags);
  if (message.msg_iovlen > kMostParts) return failed(-EMSGSIZE);
  if (message.msg_name != nullptr && static_cast<int>(message.msg_namelen) < 0)
    return failed(-EINVAL);
  FrameGuard guard(socket.receive_lock);
  if (!guard) return receive_beside(socket, fd, message, flags);
  if (guard.taken_over()) udp_repair_receiving(socket);
  // One that left its wait by a jump waits no more.
  if (socket.waiter == this_thread() && frame_has_ended(socket.waiter_frame, this_frame()))
    socket.sleeping = socket.looking = socket.waiter = 0;
  count_receive(socket, fd);
  if (socket.kernel_only.load(std::memory_order_relaxed)) end_read_flows(socket);
  if (socket.in_end == 0) {
    guard.unlock();
    const ssize_t result = by_kernel(fd, message, flags);
    if (result >= 0 && socket.counters != nullptr && (flags & MSG_PEEK) == 0) {
      socket.counters->kernel.bytes.fetch_add(static_cast<std::uint64_t>(result),
                                              std::memory_order_relaxed);
      socket.counters->kernel.messages.fetch_add(1, std::memory_order_relaxed);
    }
    return result;
  }
  bool kernel_first = false;
  ssize_t result = -EAGAIN;
  // What has been sent while we were watching is in the kernel. Now and then it has a turn: then
  // nothing more is put into memory until it has given something.
  if (++socket.ring_receives >= kKernelEvery && udp_kernel_has_something(socket, fd)) {
    socket.kernels_turn = true;
    udp_watch_all(socket);
  }
  bool look = socket.kernels_turn;
  for (std::size_t i = 0; i < socket.in_end && !look; ++i)
    look = socket.in[i].readable() && socket.in[i].receiver.watched();
  if (!look) {
    result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
    if (result != -EAGAIN) return failed(result);
    look = kernel_first;
  }
  if (look) {
    result = udp_take_now(socket, fd, message, flags);
    if (result != -EAGAIN) return received(socket, fd, result, flags);
  }
  if (nonblocking(socket, fd, flags)) return come_back_empty(socket, fd, message, flags, look);
  return wait_and_receive(socket, fd, message, flags, guard);
}

}  // namespace farcall::preload
