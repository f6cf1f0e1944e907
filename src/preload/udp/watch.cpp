// SPDX-License-Identifier: Apache-2.0
//
// Who tells that a datagram is there: the kernel, for watched flows, or the library.
#include <utility>

#include "preload/epoll/epoll.hpp"
#include "preload/real.hpp"
#include "preload/udp/take.hpp"

namespace farcall::preload {
namespace {

bool any_awake(const UdpSocket& socket) noexcept {
  return socket.any_in([](const InFlow& flow) { return !flow.receiver.watched(); });
}

bool has_kept_error(const UdpSocket& socket) noexcept {
  return socket.kept_error.load(std::memory_order_relaxed) != 0;
}

// poll() or select(): the program waits here.
void note_poll(UdpSocket& socket) noexcept { socket.waits_here = socket.polls_here = true; }

// What goes on before any wait: new senders, flows that begin. True if a datagram is in memory;
// if not, all that comes from now on comes through the kernel.
bool watch_now(UdpSocket& socket, int fd) noexcept {
  udp_look_at_door(socket, fd);
  socket.busy = false;
  socket.empty_calls = 0;
  udp_watch_all(socket);
  udp_begin_flows(socket, fd);
  return udp_looks_ready(socket);
}

}  // namespace

void udp_watch_all(UdpSocket& socket) noexcept {
  socket.each_in([](InFlow& flow) { flow.receiver.watch(); });
}

void udp_unwatch_all(UdpSocket& socket, int fd) noexcept {
  if (socket.sleeping != 0 || socket.kernels_turn || !socket.may_use_memory()) return;
  bool allowed = false;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    InFlow& flow = socket.in[i];
    if (flow.state != InFlow::kUsed || !flow.began || !flow.received_by_kernel ||
        !flow.receiver.watched())
      continue;
    if (!allowed && !(is_registered(fd) ? epoll_allows_wake_up(fd) : socket.waits_here)) return;
    if (!allowed && socket.looked_at == 0) udp_note_losses(socket, fd);
    allowed = true;
    // What is put into memory from now on says how many the kernel has been given before. Those
    // that it has dropped would be waited for, and others be read first that came later.
    if (flow.has_lost) continue;
    flow.receiver.unwatch();
  }
}

bool udp_looks_ready(const UdpSocket& socket) noexcept {
  return socket.any_in([](const InFlow& flow) { return flow.receiver.looks_ready(); });
}

// Where the one last ran that sent last.
std::uint32_t udp_last_senders_processor(const UdpSocket& socket) noexcept {
  const std::size_t index = socket.last_in < socket.in_end ? socket.last_in : 0;
  if (socket.in_end == 0 || socket.in[index].state == InFlow::kFree) return 0;
  return socket.in[index].receiver.sender_processor();
}

void udp_end_if_read(UdpSocket& socket, InFlow& flow) noexcept {
  flow.receiver.watch();  // nothing is added from now on
  if (!flow.receiver.looks_ready()) udp_end_in(socket, flow);
}

void udp_end_in(UdpSocket& socket, InFlow& flow) noexcept {
  flow.receiver.say_gone();
  socket.ended_at += flow.receiver.published();
  flow.state = InFlow::kFree;
  observe::close(std::exchange(flow.observed, nullptr));
  udp_unmap(flow.receiver.memory());
  while (socket.in_end != 0 && socket.in[socket.in_end - 1].state == InFlow::kFree) --socket.in_end;
}

void udp_let_end(InFlow& flow) noexcept {
  flow.receiver.say_leaves();
  flow.state = InFlow::kEnding;
}

bool udp_watch(UdpSocket& socket, int fd) noexcept {
  (void)udp_check_receivers(socket, fd, false);
  const Guard guard(socket.receive_lock);
  return guard && watch_now(socket, fd);
}

bool udp_needs_watch(UdpSocket& socket, int fd) noexcept {
  const Guard guard(socket.receive_lock);
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
  const Guard guard(socket.receive_lock);
  if (!guard) return false;
  note_poll(socket);
  ticket = {.generation = socket.generation, .was_awake = any_awake(socket)};
  ++socket.sleeping;
  return watch_now(socket, fd) || has_kept_error(socket);
}

void udp_leave_kernel(UdpSocket& socket, int fd, const UdpTicket& ticket) noexcept {
  const Guard guard(socket.receive_lock);
  if (!guard || socket.generation != ticket.generation) return;
  if (socket.sleeping != 0) --socket.sleeping;
  socket.looked_at = 0;
  if (ticket.was_awake) udp_unwatch_all(socket, fd);
}

bool udp_awake(UdpSocket& socket) noexcept {
  const Guard guard(socket.receive_lock);
  if (!guard || socket.in_end == 0) return false;
  note_poll(socket);
  return socket.may_use_memory();
}

std::uint64_t udp_position(UdpSocket& socket) noexcept {
  if (!socket.receive_lock.try_lock()) return kNoDatagram;
  std::uint64_t sum = socket.ended_at;
  bool ready = false;
  socket.each_in([&](const InFlow& flow) {
    sum += flow.receiver.published();
    ready = ready || flow.receiver.looks_ready();
  });
  socket.receive_lock.unlock();
  return ready ? sum : kNoDatagram;
}

bool udp_may_be_ready(UdpSocket& socket) noexcept {
  if (!socket.receive_lock.try_lock()) return true;
  const bool ready = udp_looks_ready(socket);
  socket.receive_lock.unlock();
  return ready;
}

bool udp_readable(UdpSocket& socket) noexcept {
  if (has_kept_error(socket)) return true;
  const Guard guard(socket.receive_lock);
  if (!guard || socket.in_end == 0) return false;
  note_poll(socket);
  return udp_looks_ready(socket);
}

std::uint32_t udp_senders_processor(UdpSocket& socket) noexcept {
  if (!socket.receive_lock.try_lock()) return 0;
  const std::uint32_t processor = udp_last_senders_processor(socket);
  socket.receive_lock.unlock();
  return processor;
}

}  // namespace farcall::preload
