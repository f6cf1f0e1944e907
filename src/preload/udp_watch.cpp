// SPDX-License-Identifier: Apache-2.0
//
// Who tells that a datagram is there: the kernel, for watched flows, or the library. And who looks
// at flows, so that their memory stays as long.
#include "preload/epoll.hpp"
#include "preload/real.hpp"
#include "preload/udp.hpp"

namespace farcall::preload {
namespace {

bool any_awake(const UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_end; ++i)
    if (socket.in[i].readable() && !socket.in[i].receiver.watched()) return true;
  return false;
}

// poll() or select(): the program waits here.
void note_poll(UdpSocket& socket) noexcept {
  socket.waits_here = true;
  socket.polls_here = true;
}

}  // namespace

void udp_watch_all(UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_end; ++i)
    if (socket.in[i].readable()) socket.in[i].receiver.watch();
}

void udp_unwatch_all(UdpSocket& socket, int fd) noexcept {
  if (socket.sleeping != 0 || socket.kernels_turn ||
      socket.stay_watched.load(std::memory_order_relaxed) ||
      socket.kernel_only.load(std::memory_order_relaxed))
    return;
  const std::uint32_t here = this_processor();
  bool allowed = false;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    InFlow& flow = socket.in[i];
    if (flow.state != InFlow::kUsed || !flow.began || !flow.receiver.watched()) continue;
    if (!allowed && !(is_registered(fd) ? epoll_allows_wake_up(fd) : bool{socket.waits_here}))
      return;
    allowed = true;
    flow.receiver.note_processor(here);
    flow.receiver.unwatch();
  }
}

bool udp_looks_ready(const UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_end; ++i)
    if (socket.in[i].readable() && socket.in[i].receiver.looks_ready()) return true;
  return false;
}

// Where the one last ran that sent last.
std::uint32_t udp_last_senders_processor(const UdpSocket& socket) noexcept {
  const std::size_t index = socket.last_in < socket.in_end ? socket.last_in : 0;
  if (socket.in_end == 0 || !socket.in[index].readable()) return 0;
  return socket.in[index].receiver.sender_processor();
}

void udp_enter_wait(UdpSocket& socket, std::uint32_t& kind, std::uintptr_t frame) noexcept {
  const bool alone = socket.sleeping + socket.looking == 0;
  socket.waiter_frame = alone ? frame : 0;
  socket.waiter = alone ? this_thread() : 0;
  ++kind;
}

void udp_leave_wait(UdpSocket& socket, std::uint32_t& kind) noexcept {
  if (kind != 0) --kind;
  if (socket.sleeping + socket.looking == 0) socket.waiter = 0;
}

void udp_end_in(UdpSocket& socket, InFlow& flow) noexcept {
  (void)socket;
  flow.receiver.say_gone();
  // seq_cst: pairs with those who count themselves as visitors, then look at the state
  flow.state.store(InFlow::kDead);
}

void udp_unmap_dead(UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_end && socket.looking == 0; ++i) {
    InFlow& flow = socket.in[i];
    if (flow.state != InFlow::kDead || socket.visitors.load() != 0) continue;
    flow.state.store(InFlow::kFree);
    udp_unmap(flow.receiver.memory());
    udp_uncount_flow();
  }
  while (socket.in_end != 0 && socket.in[socket.in_end - 1].state == InFlow::kFree) --socket.in_end;
}

bool udp_watch(UdpSocket& socket, int fd) noexcept {
  (void)udp_check_receivers(socket, fd, false);
  const FrameGuard guard(socket.receive_lock);
  if (guard) return udp_watch_now(socket, fd);
  udp_repair_receiving(socket);
  return udp_looks_ready(socket);
}

bool udp_needs_watch(UdpSocket& socket, int fd) noexcept {
  const FrameGuard guard(socket.receive_lock);
  if (!guard || socket.in_end == 0) return false;
  return !any_awake(socket) || !epoll_allows_wake_up(fd);
}

bool udp_watch_for_good(UdpSocket& socket, int fd) noexcept {
  socket.stay_watched.store(true, std::memory_order_relaxed);
  return udp_watch(socket, fd);
}

bool udp_enter_kernel(UdpSocket& socket, int fd, UdpTicket& ticket) noexcept {
  (void)udp_check_receivers(socket, fd, false);
  ticket = {};
  const FrameGuard guard(socket.receive_lock);
  if (!guard) {
    udp_repair_receiving(socket);
    return udp_looks_ready(socket);
  }
  note_poll(socket);
  ticket = {.generation = socket.generation, .was_awake = any_awake(socket)};
  udp_enter_wait(socket, socket.sleeping, this_frame());
  return udp_watch_now(socket, fd);
}

void udp_leave_kernel(UdpSocket& socket, int fd, const UdpTicket& ticket) noexcept {
  const FrameGuard guard(socket.receive_lock);
  if (!guard || socket.generation != ticket.generation) return;
  udp_leave_wait(socket, socket.sleeping);
  if (ticket.was_awake) udp_unwatch_all(socket, fd);
}

bool udp_awake(UdpSocket& socket) noexcept {
  if (socket.in_end == 0) return false;
  note_poll(socket);
  return !socket.stay_watched.load(std::memory_order_relaxed) &&
         !socket.kernel_only.load(std::memory_order_relaxed);
}

std::uint64_t udp_position(UdpSocket& socket) noexcept {
  if (socket.in_end == 0 || !socket.receive_lock.try_enter(this_frame())) return kNoDatagram;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < socket.in_end; ++i)
    if (socket.in[i].readable()) sum += socket.in[i].receiver.published();
  if (!udp_looks_ready(socket)) sum = kNoDatagram;
  socket.receive_lock.leave();
  return sum;
}

bool udp_readable(UdpSocket& socket) noexcept {
  const FrameGuard guard(socket.receive_lock);
  if (socket.in_end != 0) note_poll(socket);
  return udp_looks_ready(socket);
}

void udp_note_processor(UdpSocket& socket, std::uint32_t here) noexcept {
  const FrameGuard guard(socket.receive_lock);
  if (!guard) return;
  for (std::size_t i = 0; i < socket.in_end; ++i)
    if (socket.in[i].readable()) socket.in[i].receiver.note_processor(here);
}

std::uint32_t udp_senders_processor(UdpSocket& socket) noexcept {
  if (!socket.receive_lock.try_enter(this_frame())) return 0;
  const std::uint32_t processor = udp_last_senders_processor(socket);
  socket.receive_lock.leave();
  return processor;
}

}  // namespace farcall::preload
