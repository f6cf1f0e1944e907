// SPDX-License-Identifier: Apache-2.0
//
// Sending datagrams, by memory or by the kernel.
#include <poll.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "preload/address.hpp"
#include "preload/diag.hpp"
#include "preload/observed.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"
#include "preload/udp_calls.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kFirstJoin = 4;  // sends
constexpr std::uint32_t kMostPause = 4096;
constexpr std::uint64_t kCheckTicks = 10'000 * kTicksPerMicrosecond;

ssize_t send_by_kernel(int fd, const msghdr& message, int flags) noexcept {
  return real::next<"sendmsg", ssize_t(int, const msghdr*, int)>()(fd, &message, flags);
}

// An address has two places.
std::size_t place_of(const Endpoint& to) noexcept {
  std::uint64_t words[2];
  std::memcpy(words, to.address.data(), sizeof words);
  return ((words[0] ^ (words[1] + to.port)) * 0x9e3779b97f4a7c15) >> 56;
}
static_assert(UdpSocket::kTargets == 256);

// `place` is where it belongs; it is not another's that is in use.
void new_target(UdpSocket& socket, int fd, Target& place, const Endpoint& to) noexcept {
  place = Target{};
  place.to = to;
  place.next_try = kFirstJoin;
  place.state = Target::kKernel;
  socket.last = &place;
  if (!udp_is_local(to)) return;
  // The address of this socket costs a system call as long as it has no port.
  if (!socket.own_known)
    socket.own_known = address_of(SYS_getsockname, fd, socket.own) && socket.own.port != 0;
  const bool candidate = settings().wants(socket.own, to);
  if (candidate) place.state = Target::kCandidate;
  place.counters = socket.counters != nullptr ? socket.counters : counters_for(Protocol::udp, to);
  if (place.counters == nullptr) return;
  if (place.counters != socket.counters)
    place.counters->connections.fetch_add(1, std::memory_order_relaxed);
  if (!candidate) count(place.counters, Reason::excluded);
}

Target* find_known(UdpSocket& socket, const Endpoint& to) noexcept {
  if (socket.last != nullptr && socket.last->to == to) return socket.last;
  const std::size_t place = place_of(to);
  for (const std::size_t index : {place, place ^ 1}) {
    Target& target = socket.targets[index];
    if (target.state != Target::kNone && target.to == to) return &target;
  }
  return nullptr;
}

// One that shares memory keeps its place until its receiver has gone; if both places are taken so,
// the newcomer goes by the kernel.
Target* find_target(UdpSocket& socket, int fd, const Endpoint& to) noexcept {
  if (Target* const known = find_known(socket, to)) return socket.last = known;
  const std::size_t place = place_of(to);
  Target* free = nullptr;
  for (const std::size_t index : {place, place ^ 1}) {
    Target& target = socket.targets[index];
    if (target.state == Target::kJoined && socket.out[target.flow].sender.receiver_gone())
      udp_end_out(socket, target, true);
    if (target.state >= Target::kJoining) continue;
    // Better one that nobody needs.
    if (free == nullptr || target.state <= Target::kKernel) free = &target;
  }
  if (free != nullptr) new_target(socket, fd, *free, to);
  return free;
}

// The address that a datagram goes to, if it may be a socket of this machine.
bool destination(UdpSocket& socket, int fd, const msghdr& message, Endpoint& to) noexcept {
  if (message.msg_name != nullptr && message.msg_namelen != 0) {
    const std::size_t size = socket.family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (message.msg_namelen < size) return false;
    sockaddr_in6 name{};
    std::memcpy(&name, message.msg_name, size);
    // What else the kernel makes of an address of the other family, it knows.
    return name.sin6_family == socket.family &&
           Endpoint::from(reinterpret_cast<const sockaddr*>(&name), to) && to.port != 0 &&
           !is_wildcard(to);
  }
  if (!socket.peer_known) {
    if (!address_of(SYS_getpeername, fd, socket.peer)) socket.peer = {};
    socket.peer_known = true;
  }
  to = socket.peer;
  return to.port != 0;
}

// The receiver is dead; what it has not read goes again.
void give_back(const UdpSocket& socket, int fd, OutFlow& flow) noexcept {
  flow.sender.take_back([&](const std::byte* first, std::size_t first_size, const std::byte* second,
                            std::size_t second_size) noexcept {
    iovec parts[2] = {{const_cast<std::byte*>(first), first_size},
                      {const_cast<std::byte*>(second), second_size}};
    sockaddr_in6 name{};
    msghdr message = message_of(parts, 2, &name, sizeof name);
    udp_tell_name(socket.family, flow.target->to, message);
    kernel(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

// Is the receiver still the one who gets what goes there? A closed one has lost what it did not
// read, as it would have in the kernel, and one that lives still reads it.
void check_receiver(UdpSocket& socket, int fd, Target& target) noexcept {
  OutFlow& flow = socket.out[target.flow];
  if (!flow.sender.receiver_gone() && udp_still_there(flow)) return;
  if (!flow.sender.receiver_gone() && !flow.sender.all_read() && !udp_receiver_lives(flow))
    give_back(socket, fd, flow);
  udp_end_out(socket, target, true);
}

// By memory; false if the kernel has to do it.
bool send_by_memory(UdpSocket& socket, int fd, Target& target, const msghdr& message, int flags,
                    std::size_t bytes) noexcept {
  constexpr int kPlainFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
  OutFlow& flow = socket.out[target.flow];
  const std::uint64_t now = now_ticks();
  flow.sender.note_processor(this_processor());
  if (now - flow.checked_at > kCheckTicks) {
    flow.checked_at = now;
    check_receiver(socket, fd, target);
    if (target.state != Target::kJoined) return false;
  }
  if (message.msg_controllen != 0 || (flags & ~kPlainFlags) != 0 || bytes > kMostDatagram ||
      socket.corked.load(std::memory_order_relaxed))
    return false;
  if (!flow.sender.send(message.msg_iov, message.msg_iovlen, bytes)) {
    if (flow.sender.receiver_gone()) check_receiver(socket, fd, target);
    return false;
  }
  if (flow.observed != nullptr) {
    observe::note_sent(&flow.observed->sent, nullptr, bytes);
    if (observe::is_tapped(&flow.observed->sent)) [[unlikely]]
      tap_datagram(flow.observed->sent, message, bytes);
  }
  if (target.counters != nullptr) target.counters->ring.count(bytes);
  return true;
}

// By the kernel, without the lock: it may wait there. What goes to a receiver with memory counts, a
// part of a datagram when the rest follows.
ssize_t send_and_count(UdpSocket& socket, int fd, const msghdr& message, int flags,
                       const Endpoint& to, bool counts) noexcept {
  const ssize_t result = send_by_kernel(fd, message, flags);
  if (result < 0) return result;
  const bool more = (flags & MSG_MORE) != 0;
  socket.corked.store(more, std::memory_order_relaxed);
  if (!counts) return result;
  const Guard guard(socket.send_lock);
  const Target* const target = more || !guard ? nullptr : find_known(socket, to);
  if (target == nullptr) return result;
  if (target->state == Target::kJoined) {
    OutFlow& flow = socket.out[target->flow];
    flow.sender.sent_by_kernel();
    if (flow.observed != nullptr) {
      const auto bytes = static_cast<std::size_t>(result);
      observe::note_sent_by_kernel(&flow.observed->sent, nullptr, bytes);
      if (observe::is_tapped(&flow.observed->sent)) [[unlikely]]
        tap_datagram(flow.observed->sent, message, bytes);
    }
  }
  if (target->counters != nullptr)
    target->counters->kernel.count(static_cast<std::uint64_t>(result));
  return result;
}

// Adds up what is sent; false for what the kernel refuses, or is to say. The parts are no more than
// it takes.
bool measure(const msghdr& message, std::size_t& bytes) noexcept {
  if (is_bad_optional(message.msg_name)) return false;
  bytes = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) {
    const iovec& part = message.msg_iov[i];
    // Each, so that the sum cannot overflow.
    if (part.iov_len > kMostDatagram || (part.iov_len != 0 && is_no_address(part.iov_base)))
      return false;
    bytes += part.iov_len;
  }
  return true;
}

}  // namespace

void udp_end_out(UdpSocket& socket, Target& target, bool again) noexcept {
  OutFlow& flow = socket.out[target.flow];
  flow.sender.say_gone();
  flow.used = false;
  observe::close(std::exchange(flow.observed, nullptr));
  udp_unmap(flow.sender.memory());
  target.state = again ? Target::kCandidate : Target::kKernel;
  target.sends = 0;
  target.next_try = kFirstJoin;
}

void udp_end_sending(UdpSocket& socket, bool again) noexcept {
  if (socket.last == nullptr) return;
  udp_give_up_joining(socket);
  for (Target& target : socket.targets) {
    if (target.state == Target::kJoined) udp_end_out(socket, target, again);
    target.state = again ? Target::kNone : Target::kKernel;
  }
  socket.last = again ? nullptr : socket.last;
}

Interruption udp_check_receivers(UdpSocket& socket, int fd, bool may_wait) noexcept {
  if (socket.last == nullptr) return Interruption::none;
  const auto unread = [](const OutFlow& flow) noexcept {
    return flow.used && flow.target->state == Target::kJoined && !flow.sender.all_read();
  };
  {
    const Guard guard(socket.send_lock);
    if (!guard || std::none_of(socket.out.begin(), socket.out.end(), unread))
      return Interruption::none;
  }
  // Usually the receiver just had no turn yet; asking the kernel costs more than most waits.
  if (may_wait) {
    const HeldSignals held;
    pollfd coming{.fd = fd, .events = POLLIN, .revents = 0};
    timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
    if (kernel(SYS_ppoll, &coming, 1, &moment, nullptr, 0) != 0) return Interruption::none;
    if (const Interruption owed = held.interruption(); owed != Interruption::none) return owed;
  }
  const Guard guard(socket.send_lock);
  if (guard)
    for (OutFlow& flow : socket.out)
      if (unread(flow)) check_receiver(socket, fd, *flow.target);
  return Interruption::none;
}

ssize_t udp_send(UdpSocket& socket, int fd, const msghdr& message, int flags) noexcept {
  std::size_t bytes = 0;
  Endpoint to{};
  if (socket.kernel_only.load(std::memory_order_relaxed) || !measure(message, bytes)) [[unlikely]]
    return send_by_kernel(fd, message, flags);
  Guard guard(socket.send_lock);
  Target* const target =
      guard && destination(socket, fd, message, to) ? find_target(socket, fd, to) : nullptr;
  bool counts = false;
  bool shown = false;
  if (target != nullptr && target->state != Target::kKernel) {
    if (target->state == Target::kJoined &&
        send_by_memory(socket, fd, *target, message, flags, bytes))
      return static_cast<ssize_t>(bytes);
    if (target->state == Target::kJoining ||
        (target->state == Target::kCandidate && ++target->sends >= target->next_try)) {
      udp_join(socket, fd, *target);
      shown = target->state == Target::kJoining && socket.joining.asked;
      if (target->state == Target::kCandidate)
        target->next_try = target->sends + std::min<std::uint32_t>(target->sends, kMostPause);
    }
    counts = true;
  }
  guard.unlock();
  const ssize_t result = send_and_count(socket, fd, message, flags, to, counts);
  if (shown) {
    const int error = errno;
    udp_await_joined(socket, fd);
    errno = error;
  }
  return result;
}

}  // namespace farcall::preload
