// SPDX-License-Identifier: Apache-2.0
#include "preload/udp/take.hpp"

#include <linux/sock_diag.h>
#include <poll.h>

#include <utility>

#include "preload/observed.hpp"
#include "preload/real.hpp"

namespace farcall::preload {

namespace {

// What is next of a flow.
ssize_t take(UdpSocket& socket, InFlow& flow, msghdr& message, int flags) noexcept {
  const bool peek = (flags & MSG_PEEK) != 0;
  if (has_bad_part(message.msg_iov, message.msg_iovlen) || is_bad_optional(message.msg_name))
      [[unlikely]] {
    // The kernel has lost it by then, too.
    flow.receiver.take(nullptr, 0, peek);
    return -EFAULT;
  }
  const DatagramReceiver::Taken taken =
      flow.receiver.take(message.msg_iov, message.msg_iovlen, peek);
  if (message.msg_name != nullptr) udp_tell_name(socket.family, flow.from, message);
  message.msg_controllen = 0;
  message.msg_flags = (taken.length > taken.bytes ? MSG_TRUNC : 0) | (flags & MSG_CMSG_CLOEXEC);
  if (flow.observed != nullptr && !peek) {
    observe::note_received(&flow.observed->received, nullptr, taken.bytes);
    if (observe::is_tapped(&flow.observed->received)) [[unlikely]]
      tap_datagram(flow.observed->received, message, taken.length);
  }
  if (flow.counters != nullptr && !peek) {
    flow.counters->ring.count(taken.bytes);
    if (!flow.counted) flow.counters->accelerated.fetch_add(1, std::memory_order_relaxed);
    flow.counted = true;
  }
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? taken.length : taken.bytes);
}

// What the kernel says of a socket's memory (sock_diag(7)), or `unknown` where it does not.
std::uint32_t of_memory(int fd, unsigned what, std::uint32_t unknown) noexcept {
  std::uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t size = sizeof memory;
  const bool told = kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, memory, &size) >= 0;
  return told ? memory[what] : unknown;
}

// How many datagrams the kernel may have queued, at most.
std::uint64_t most_queued(int fd) noexcept {
  constexpr std::uint32_t kLeastCharge = 512;  // what one costs of the buffer, without its bytes
  constexpr std::uint32_t kUnknown = ((1U << 16) - 1) * kLeastCharge;
  return of_memory(fd, SK_MEMINFO_RMEM_ALLOC, kUnknown) / kLeastCharge + 1;
}

// How many the kernel has dropped for want of room.
std::uint32_t dropped(int fd) noexcept { return of_memory(fd, SK_MEMINFO_DROPS, 0); }

// Whether it has dropped more since that was last asked; whose they were is not known.
bool note_drops(UdpSocket& socket, int fd) noexcept {
  const std::uint32_t now = dropped(fd);
  if (std::exchange(socket.dropped, now) == now) return false;
  socket.each_in([](InFlow& flow) { flow.has_lost = true; });
  return true;
}

// Datagrams of this sender were dropped if all that was queued when they were first missed has
// come. Without this, those who send by the kernel alone could keep it from ever being empty.
bool is_lost(const UdpSocket& socket, int fd, InFlow& flow) noexcept {
  if (flow.lost_at == 0) flow.lost_at = socket.kernel_receives + most_queued(fd);
  return socket.kernel_receives >= flow.lost_at;
}

}  // namespace

ssize_t udp_take_from_memory(UdpSocket& socket, int fd, msghdr& message, int flags,
                             bool& kernel_first) noexcept {
  using Next = DatagramReceiver::Next;
  kernel_first = false;
  std::size_t index = socket.last_in;
  for (std::size_t i = 0; i < socket.in_end; ++i, ++index) {
    if (index >= socket.in_end) index = 0;
    InFlow& flow = socket.in[index];
    if (flow.state == InFlow::kFree) continue;
    Next next = flow.receiver.next();
    if (next == Next::kernel_first && is_lost(socket, fd, flow)) {
      flow.receiver.kernel_has_no_more();
      next = Next::ready;
    }
    if (next == Next::kernel_first) kernel_first = true;
    if (next == Next::broken) {
      udp_end_in(socket, flow);
      return udp_take_from_memory(socket, fd, message, flags, kernel_first);
    }
    if (next != Next::ready) continue;
    flow.lost_at = 0;
    socket.hot = true;
    socket.empty_calls = 0;
    // The next look begins behind it, so that none is starved; but what has been peeked at is what
    // comes next.
    socket.last_in = (flags & MSG_PEEK) != 0 ? index : index + 1;
    return take(socket, flow, message, flags);
  }
  return -EAGAIN;
}

bool udp_kernel_has_something(UdpSocket& socket, int fd) noexcept {
  socket.ring_receives = 0;
  socket.sent_before_look = detail::udp_sent_by_kernel.load(std::memory_order_relaxed);
  const std::uint64_t now = now_ticks();
  pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
  timespec none{};
  const bool something = kernel(SYS_ppoll, &look, 1, &none, nullptr, 0) != 0;
  socket.looked_at = something ? 0 : now;
  return something;
}

namespace {

// Around a look into the kernel, which found nothing. A sender counts a datagram when it has sent
// it, and may have no processor meanwhile: it is the receiver's that it has woken.
void note_sent(UdpSocket& socket) noexcept {
  socket.each_in([](InFlow& flow) {
    // A flow that never began would never come by memory.
    if (!flow.began && flow.receiver.sender_sends()) kernel(SYS_sched_yield);
    flow.counts_all = !flow.receiver.sender_sends();
    flow.kernel_sent = flow.receiver.kernel_sent();
  });
}
// Nothing is on its way, and more has come than the sender counts. What remains has been sent past
// the library: it would hide as many that the kernel has, and what comes behind them would be read
// before.
void note_uncounted(InFlow& flow) noexcept {
  constexpr std::uint64_t kLong = 10'000 * kTicksPerMicrosecond;
  const std::uint64_t uncounted = flow.receiver.kernel_seen() - flow.kernel_sent;
  if (uncounted == 0) {
    flow.uncounted_since = 0;
    return;
  }
  const std::uint64_t now = now_ticks();
  if (flow.uncounted_since == 0) {
    flow.uncounted_since = now;
    flow.uncounted = uncounted;
  }
  flow.uncounted = std::min(flow.uncounted, uncounted);
  if (now - flow.uncounted_since <= kLong) return;
  flow.receiver.kernel_is_empty(flow.receiver.kernel_seen() - flow.uncounted);
  flow.uncounted_since = 0;
}
void note_empty(UdpSocket& socket) noexcept {
  socket.kernels_turn = false;
  socket.each_in([](InFlow& flow) {
    if (!flow.counts_all) return;
    if (!flow.began || flow.kernel_sent > flow.receiver.kernel_seen())
      flow.receiver.kernel_is_empty(flow.kernel_sent);
    else
      note_uncounted(flow);
    flow.began = true;
    flow.has_lost = false;
  });
}

}  // namespace

void udp_note_losses(UdpSocket& socket, int fd) noexcept {
  constexpr std::uint64_t kReceivesPerLook = 8;
  if (socket.any_in([](const InFlow& flow) { return !flow.has_lost; }))
    (void)note_drops(socket, fd);
  if (!socket.any_in([](const InFlow& flow) { return flow.has_lost; })) return;
  if (socket.kernel_receives % kReceivesPerLook != 0) return;
  note_sent(socket);
  if (!udp_kernel_has_something(socket, fd)) note_empty(socket);
}

void udp_begin_flows(UdpSocket& socket, int fd) noexcept {
  if (!socket.any_in([](const InFlow& flow) { return !flow.began; })) return;
  note_sent(socket);
  if (!udp_kernel_has_something(socket, fd)) note_empty(socket);
}

void udp_note_came(UdpSocket& socket, int fd, const sockaddr_in6& name, const msghdr& message,
                   std::size_t bytes) noexcept {
  Endpoint from{};
  Endpoint::from(reinterpret_cast<const sockaddr*>(&name), from);
  socket.hot = socket.kernels_turn = socket.busy = false;
  socket.empty_calls = 0;
  ++socket.kernel_receives;
  // Whoever comes shows its socket and sends.
  if (socket.guest >= 0) udp_take_flows(socket, fd);
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    InFlow& flow = socket.in[i];
    if (flow.state == InFlow::kFree || flow.from != from) continue;
    flow.receiver.came_by_kernel();
    if (flow.state == InFlow::kEnding) continue;  // there may be another by now
    flow.lost_at = 0;
    flow.received_by_kernel = true;
    socket.hot = true;
    if (flow.observed != nullptr) {
      observe::note_received_by_kernel(&flow.observed->received, nullptr, bytes);
      if (observe::is_tapped(&flow.observed->received)) [[unlikely]]
        tap_datagram(flow.observed->received, message, bytes);
    }
    if (flow.counters != nullptr) flow.counters->kernel.count(bytes);
    if (!flow.began && socket.receives % 4 == 0) udp_begin_flows(socket, fd);
    return udp_unwatch_all(socket, fd);
  }
  udp_look_at_door(socket, fd);
}

namespace {

bool is_owed(const InFlow& flow) noexcept {
  return flow.began && !flow.owed_in_vain && !flow.has_lost &&
         flow.kernel_sent > flow.receiver.kernel_seen();
}

// The kernel has nothing, though a sender has given it something. What it has not dropped is on its
// way: where the processor of the sender is busy, a thread of the kernel delivers it. A sender for
// which this is in vain has said what is not so, and is not waited for again.
template <class Look>
ssize_t look_for_owed(UdpSocket& socket, int fd, Look look) noexcept {
  constexpr std::int64_t kLongest = 2'000'000;
  if (!socket.any_in(is_owed)) return -EAGAIN;
  (void)note_drops(socket, fd);
  if (!socket.any_in(is_owed)) return -EAGAIN;
  for (const std::int64_t start = monotonic_ns(); monotonic_ns() - start < kLongest;) {
    kernel(SYS_sched_yield);
    if (const ssize_t result = look(); result != -EAGAIN) return result;
    if (note_drops(socket, fd)) return -EAGAIN;
  }
  socket.each_in([](InFlow& flow) { flow.owed_in_vain = flow.owed_in_vain || is_owed(flow); });
  return -EAGAIN;
}

}  // namespace

ssize_t udp_take_now(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  udp_watch_all(socket);
  bool kernel_first = false;
  ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
  if (result != -EAGAIN) return result;
  note_sent(socket);
  socket.sent_before_look = detail::udp_sent_by_kernel.load(std::memory_order_relaxed);
  const std::uint64_t now = now_ticks();
  sockaddr_in6 name;
  const auto look = [&]() noexcept {
    return named_receive(message, name, [&](msghdr& asked) noexcept {
      return static_cast<ssize_t>(kernel(SYS_recvmsg, fd, &asked, flags | MSG_DONTWAIT));
    });
  };
  result = look();
  if (result == -EAGAIN) result = look_for_owed(socket, fd, look);
  socket.ring_receives = 0;
  // Behind what the kernel gave there may be more, of which nobody is told again.
  socket.looked_at = result == -EAGAIN ? now : 0;
  if (result >= 0 && (flags & MSG_PEEK) == 0)
    udp_note_came(socket, fd, name, message, static_cast<std::size_t>(result));
  if (result != -EAGAIN) return result;
  note_empty(socket);
  if (!kernel_first) return -EAGAIN;
  // What the kernel owed is lost.
  socket.each_in([](InFlow& flow) { flow.lost_at = std::min<std::uint64_t>(flow.lost_at, 1); });
  ++socket.kernel_receives;
  return udp_take_from_memory(socket, fd, message, flags, kernel_first);
}

}  // namespace farcall::preload
