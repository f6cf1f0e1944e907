// SPDX-License-Identifier: Apache-2.0
#include "preload/udp_take.hpp"

#include <linux/sock_diag.h>
#include <poll.h>

#include "preload/real.hpp"

namespace farcall::preload {

ssize_t udp_take(UdpSocket& socket, InFlow& flow, const DatagramReceiver::Record& record,
                 msghdr& message, int flags) noexcept {
  const bool peek = (flags & MSG_PEEK) != 0;
  // The kernel has lost it by then, too.
  const bool bad =
      has_bad_part(message.msg_iov, message.msg_iovlen) || is_bad_optional(message.msg_name);
  const DatagramReceiver::Taken taken = flow.receiver.take(record, bad ? nullptr : message.msg_iov,
                                                           bad ? 0 : message.msg_iovlen, peek);
  if (!taken.done) return -EAGAIN;
  if (bad) return -EFAULT;
  udp_tell_name(socket.family, flow.from, message);
  message.msg_controllen = 0;
  message.msg_flags = (taken.length > taken.bytes ? MSG_TRUNC : 0) | (flags & MSG_CMSG_CLOEXEC);
  if (flow.counters != nullptr && !peek) {
    flow.counters->ring.bytes.fetch_add(taken.bytes, std::memory_order_relaxed);
    flow.counters->ring.messages.fetch_add(1, std::memory_order_relaxed);
    if (!flow.counted) flow.counters->accelerated.fetch_add(1, std::memory_order_relaxed);
    flow.counted = true;
  }
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? taken.length : taken.bytes);
}

namespace {

// How many datagrams the kernel may have queued, at most.
std::uint64_t most_queued(int fd) noexcept {
  constexpr std::uint32_t kLeastCharge = 512;  // what one costs of the buffer, without its bytes
  std::uint32_t memory[SK_MEMINFO_VARS] = {};
  socklen_t size = sizeof memory;
  if (kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_MEMINFO, memory, &size) < 0) return 1 << 16;
  return memory[SK_MEMINFO_RMEM_ALLOC] / kLeastCharge + 1;
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
  const std::size_t begin = socket.last_in < socket.in_end ? socket.last_in : 0;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    const std::size_t index = (begin + i) % socket.in_end;
    InFlow& flow = socket.in[index];
    if (!flow.readable()) continue;
    DatagramReceiver::Record record;
    Next next = flow.receiver.next(record);
    if (next == Next::kernel_first && is_lost(socket, fd, flow)) {
      flow.receiver.kernel_has_no_more(record);
      next = Next::ready;
    }
    if (next == Next::kernel_first) kernel_first = true;
    if (next == Next::broken) {
      const HeldSignals held;
      udp_end_in(socket, flow);
    }
    if (next != Next::ready) continue;
    const ssize_t taken = udp_take(socket, flow, record, message, flags);
    if (taken == -EAGAIN) {
      --i;  // a handler has taken it
      continue;
    }
    flow.lost_at = 0;
    socket.hot = true;
    socket.empty_calls = 0;
    // The next look begins behind it, so that none is starved; but what has been peeked at is what
    // comes next.
    socket.last_in = (flags & MSG_PEEK) != 0 ? index : index + 1;
    return taken;
  }
  return -EAGAIN;
}

bool udp_kernel_has_something(UdpSocket& socket, int fd) noexcept {
  socket.ring_receives = 0;
  socket.looked_at = ticks();
  pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
  timespec none{};
  return kernel(SYS_ppoll, &look, 1, &none, nullptr, 0) != 0;
}

namespace {

// Nothing was in the kernel after so many had been sent there.
void note_empty(UdpSocket& socket, const std::uint64_t* sent) noexcept {
  socket.kernels_turn = false;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    InFlow& flow = socket.in[i];
    if (!flow.readable()) continue;
    // What is received before its sender has counted it is counted here already.
    if (!flow.began || sent[i] > flow.receiver.kernel_seen())
      flow.receiver.kernel_is_empty(sent[i]);
    flow.began = true;
  }
}

bool count_sent(const UdpSocket& socket, std::uint64_t* sent) noexcept {
  bool all_began = true;
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    if (!socket.in[i].readable()) continue;
    all_began = all_began && socket.in[i].began;
    sent[i] = socket.in[i].receiver.kernel_sent();
  }
  return all_began;
}

}  // namespace

void udp_begin_flows(UdpSocket& socket, int fd) noexcept {
  std::uint64_t sent[UdpSocket::kMostFlows] = {};
  if (!count_sent(socket, sent) && !udp_kernel_has_something(socket, fd)) note_empty(socket, sent);
}

void udp_note_came(UdpSocket& socket, int fd, const sockaddr_in6& name,
                   std::size_t bytes) noexcept {
  Endpoint from{};
  Endpoint::from(reinterpret_cast<const sockaddr*>(&name), from);
  socket.hot = socket.kernels_turn = false;
  ++socket.kernel_receives;
  // Whoever comes shows its socket and sends.
  if (socket.guest >= 0) udp_take_flows(socket, fd);
  for (std::size_t i = 0; i < socket.in_end; ++i) {
    InFlow& flow = socket.in[i];
    if (flow.state != InFlow::kUsed || flow.from != from) continue;
    flow.receiver.came_by_kernel();
    flow.lost_at = 0;
    socket.hot = true;
    if (flow.counters != nullptr) {
      flow.counters->kernel.bytes.fetch_add(bytes, std::memory_order_relaxed);
      flow.counters->kernel.messages.fetch_add(1, std::memory_order_relaxed);
    }
    if (!flow.began && socket.receives % 4 == 0) udp_begin_flows(socket, fd);
    return udp_unwatch_all(socket, fd);
  }
  // Somebody new may stand at the door.
  if (++socket.looks % 8 == 0) udp_take_flows(socket, fd);
}

namespace {

// What the kernel has, without waiting. All flows are watched and have nothing to give before it.
ssize_t look_in_kernel(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  std::uint64_t sent[UdpSocket::kMostFlows] = {};
  count_sent(socket, sent);
  sockaddr_in6 name;
  const ssize_t result = named_receive(message, name, [&](msghdr& asked) noexcept {
    return static_cast<ssize_t>(kernel(SYS_recvmsg, fd, &asked, flags | MSG_DONTWAIT));
  });
  socket.ring_receives = 0;
  if (result >= 0) {
    if ((flags & MSG_PEEK) == 0) udp_note_came(socket, fd, name, static_cast<std::size_t>(result));
  } else if (result == -EAGAIN) {
    note_empty(socket, sent);
  }
  return result;
}

}  // namespace

ssize_t udp_take_now(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  udp_watch_all(socket);
  bool kernel_first = false;
  ssize_t result = udp_take_from_memory(socket, fd, message, flags, kernel_first);
  if (result != -EAGAIN) return result;
  result = look_in_kernel(socket, fd, message, flags);
  if (result != -EAGAIN || !kernel_first) return result;
  // What the kernel owed is lost.
  for (std::size_t i = 0; i < socket.in_end; ++i)
    socket.in[i].lost_at = std::min<std::uint64_t>(socket.in[i].lost_at, 1);
  ++socket.kernel_receives;
  return udp_take_from_memory(socket, fd, message, flags, kernel_first);
}

}  // namespace farcall::preload
