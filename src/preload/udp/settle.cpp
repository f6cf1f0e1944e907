// SPDX-License-Identifier: Apache-2.0
//
// What has been put into memory for receivers that may have died meanwhile: the kernel has no part
// in it, and would tell the program that nobody is there.
//
// What was sent to a receiver that was alive is its own affair, as in the kernel. So each flow is
// looked at once after it has been sent to: before a thread sleeps, or, where the program does not
// sleep, some time later by the calls that find nothing.
#include "preload/settle.hpp"

#include <poll.h>

#include <array>
#include <bit>

#include "preload/real.hpp"
#include "preload/udp/calls.hpp"

namespace farcall::preload {

namespace detail {
constinit std::atomic<std::uint32_t> udp_unsettled{0};
constinit thread_local bool udp_has_sent = false;
}  // namespace detail

namespace {

constexpr std::uint32_t kWordBits = 64;
// One bit for each socket of which flows are to be looked at.
constinit std::array<std::atomic<std::uint64_t>, kMostUdpSockets / kWordBits> sockets{};

// The receiver is dead; what it has not read goes again.
void send_again(UdpSocket& socket, int fd, OutFlow& flow) noexcept {
  udp_note_sent_by_kernel(socket);
  flow.sender.take_back([&](const std::byte* first, std::size_t first_size, const std::byte* second,
                            std::size_t second_size) noexcept {
    iovec parts[2] = {{const_cast<std::byte*>(first), first_size},
                      {const_cast<std::byte*>(second), second_size}};
    sockaddr_in6 name{};
    msghdr message = message_of(parts, 2, &name, sizeof name);
    udp_tell_name(socket.family, flow.target->to, message);
    // What is told of the one before is left for the program to find.
    if (kernel(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == -ECONNREFUSED)
      kernel(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

// Calls visit(flow) for each that is to be looked at; those that it returns true for are no more.
// The lock of sending is held.
template <class Visit>
void each_unsettled(UdpSocket& socket, Visit visit) noexcept {
  std::uint32_t left = socket.unsettled.load(std::memory_order_relaxed);
  for (; left != 0; left &= left - 1) {
    const auto index = static_cast<std::uint32_t>(std::countr_zero(left));
    if (visit(socket.out[index])) udp_note_settled(socket, index);
  }
}

// Whether some of what was sent has not been read.
bool any_unread(UdpSocket& socket) noexcept {
  const Guard guard(socket.send_lock);
  if (!guard) return false;
  each_unsettled(socket, [](const OutFlow& flow) noexcept {
    return flow.target->state == Target::kJoined && flow.sender.all_read();
  });
  return socket.unsettled.load(std::memory_order_relaxed) != 0;
}

// By which it has been sent, or another one that refers to it; -1: none does any more. The lock of
// sending is held, without which none is closed.
int descriptor_of(const UdpSocket& socket) noexcept {
  if (find_udp(socket.sent_by) == &socket) return socket.sent_by;
  for (int fd = udp_highest(); fd >= 0; --fd)
    if (find_udp(fd) == &socket) return fd;
  return -1;
}

void check_all(UdpSocket& socket) noexcept {
  const Guard guard(socket.send_lock);
  if (!guard) return;
  const int fd = descriptor_of(socket);
  each_unsettled(socket, [&](const OutFlow& flow) noexcept {
    if (fd >= 0 && flow.target->state == Target::kJoined && !flow.sender.all_read())
      udp_check_receiver(socket, fd, *flow.target);
    return true;
  });
}

bool is_due(const UdpSocket& socket, std::uint64_t now) noexcept {
  return now - socket.unsettled_since.load(std::memory_order_relaxed) > kUdpCheckTicks;
}

template <class Visit>
void each_socket(Visit visit) noexcept {
  for (std::uint32_t word = 0; word < sockets.size(); ++word) {
    std::uint64_t left = sockets[word].load(std::memory_order_relaxed);
    for (; left != 0; left &= left - 1)
      visit(udp_socket_at(word * kWordBits + static_cast<std::uint32_t>(std::countr_zero(left))));
  }
}

}  // namespace

void udp_check_receiver(UdpSocket& socket, int fd, Target& target) noexcept {
  OutFlow& flow = socket.out[target.flow];
  if (!flow.sender.receiver_gone() && udp_still_there(flow)) return;
  if (!flow.sender.receiver_gone() && !flow.sender.all_read() && !udp_receiver_lives(flow))
    send_again(socket, fd, flow);
  udp_end_out(socket, target, true);
}

void udp_note_unsettled(UdpSocket& socket, int fd, std::uint32_t flow, std::uint64_t now) noexcept {
  const std::uint32_t before = socket.unsettled.load(std::memory_order_relaxed);
  socket.unsettled.store(before | 1U << flow, std::memory_order_relaxed);
  socket.sent_by = fd;
  if (before != 0) return;
  socket.unsettled_since.store(now, std::memory_order_relaxed);
  sockets[socket.index / kWordBits].fetch_or(std::uint64_t{1} << socket.index % kWordBits,
                                             std::memory_order_relaxed);
  detail::udp_unsettled.fetch_add(1, std::memory_order_relaxed);
}

void udp_note_settled(UdpSocket& socket, std::uint32_t flow) noexcept {
  const std::uint32_t before = socket.unsettled.load(std::memory_order_relaxed);
  const std::uint32_t left = before & ~(1U << flow);
  socket.unsettled.store(left, std::memory_order_relaxed);
  if (before == 0 || left != 0) return;
  sockets[socket.index / kWordBits].fetch_and(~(std::uint64_t{1} << socket.index % kWordBits),
                                              std::memory_order_relaxed);
  detail::udp_unsettled.fetch_sub(1, std::memory_order_relaxed);
}

Interruption udp_check_receivers(UdpSocket& socket, int fd, bool may_wait) noexcept {
  if (socket.unsettled.load(std::memory_order_relaxed) == 0 || !any_unread(socket))
    return Interruption::none;
  // Usually the receiver just had no turn yet; asking the kernel costs more than most waits.
  if (may_wait) {
    const HeldSignals held;
    pollfd coming{.fd = fd, .events = POLLIN, .revents = 0};
    timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
    if (kernel(SYS_ppoll, &coming, 1, &moment, nullptr, 0) != 0) return Interruption::none;
    if (const Interruption owed = held.interruption(); owed != Interruption::none) return owed;
  }
  check_all(socket);
  return Interruption::none;
}

void udp_check_at_times(UdpSocket& socket, int fd) noexcept {
  if (socket.unsettled.load(std::memory_order_relaxed) != 0 && is_due(socket, now_ticks()))
    (void)udp_check_receivers(socket, fd, false);
}

void detail::udp_settle(bool all) noexcept {
  static constinit std::atomic<std::uint64_t> looked_at{0};
  const std::uint64_t now = all ? 0 : now_ticks();
  if (!all && now - looked_at.load(std::memory_order_relaxed) <= kUdpCheckTicks) return;
  if (!all) looked_at.store(now, std::memory_order_relaxed);
  each_socket([&](UdpSocket& socket) noexcept {
    if (all || is_due(socket, now)) (void)udp_check_receivers(socket, -1, false);
  });
}

}  // namespace farcall::preload
