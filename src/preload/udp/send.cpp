// SPDX-License-Identifier: Apache-2.0
//
// Sending datagrams, by memory or by the kernel.
#include <netinet/udp.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "preload/address.hpp"
#include "preload/diag.hpp"
#include "preload/observed.hpp"
#include "preload/real.hpp"
#include "preload/settle.hpp"
#include "preload/side.hpp"
#include "preload/udp/calls.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kFirstJoin = 4;  // sends
constexpr std::uint32_t kMostPause = 4096;

ssize_t send_by_kernel(UdpSocket& socket, int fd, const msghdr& message, int flags) noexcept {
  const ssize_t sent =
      real::next<"sendmsg", ssize_t(int, const msghdr*, int)>()(fd, &message, flags);
  if (sent < 0) return sent;
  detail::udp_sent_by_kernel.fetch_add(1, std::memory_order_relaxed);
  udp_note_sent_by_kernel(socket);
  return sent;
}

// An address has two places.
std::size_t place_of(const Endpoint& to) noexcept {
  std::uint64_t words[2];
  std::memcpy(words, to.address.data(), sizeof words);
  return ((words[0] ^ (words[1] + to.port)) * 0x9e3779b97f4a7c15) >> 56;
}
static_assert(UdpSocket::kTargets == 256);

// The address of this socket costs a system call as long as it has no port.
bool know_own(UdpSocket& socket, int fd) noexcept {
  if (!socket.own_known)
    socket.own_known = address_of(SYS_getsockname, fd, socket.own) && socket.own.port != 0;
  return socket.own_known;
}

// `place` is where it belongs; it is not another's that is in use.
void new_target(UdpSocket& socket, int fd, Target& place, const Endpoint& to) noexcept {
  place = Target{};
  place.to = to;
  place.next_try = kFirstJoin;
  place.state = Target::kKernel;
  socket.last = &place;
  if (!udp_is_local(to)) return;
  (void)know_own(socket, fd);
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

// Where the kernel sends what goes to the address of all addresses: to this machine itself.
void name_this_machine(UdpSocket& socket, int fd, Endpoint& to) noexcept {
  constexpr std::array<std::uint8_t, 4> kLoopback = {127, 0, 0, 1};
  const bool own_is_v4 = know_own(socket, fd) && udp_is_v4(socket.own);
  if (!udp_is_v4(to) && !own_is_v4) {
    to.address.back() = 1;
  } else if (udp_is_v4(to) && own_is_v4 && !is_wildcard(socket.own)) {
    to.address = socket.own.address;
  } else {
    std::copy(kMappedV4.begin(), kMappedV4.end(), to.address.begin());
    std::copy(kLoopback.begin(), kLoopback.end(), to.address.begin() + kMappedV4.size());
  }
}

// The address that a message names, as the kernel takes it. False: it refuses it.
bool named_destination(UdpSocket& socket, int fd, const msghdr& message, Endpoint& to) noexcept {
  constexpr std::size_t kLeastOfSix = offsetof(sockaddr_in6, sin6_scope_id);
  const std::size_t size = message.msg_namelen;
  sockaddr_in6 name{};
  std::memcpy(&name, message.msg_name, std::min(size, sizeof name));
  if (socket.family == AF_INET && name.sin6_family == AF_UNSPEC) name.sin6_family = AF_INET;
  // One of version 6 also sends to addresses of version 4.
  const bool taken = name.sin6_family == AF_INET
                         ? size >= sizeof(sockaddr_in)
                         : name.sin6_family == socket.family && size >= kLeastOfSix;
  if (!taken || !Endpoint::from(reinterpret_cast<const sockaddr*>(&name), to) || to.port == 0)
    return false;
  if (is_wildcard(to)) name_this_machine(socket, fd, to);
  return true;
}

// The address that a datagram goes to, if it may be a socket of this machine.
bool destination(UdpSocket& socket, int fd, const msghdr& message, Endpoint& to) noexcept {
  if (message.msg_name != nullptr && message.msg_namelen != 0)
    return named_destination(socket, fd, message, to);
  if (!socket.peer_known) {
    if (!address_of(SYS_getpeername, fd, socket.peer)) socket.peer = {};
    socket.peer_known = true;
  }
  to = socket.peer;
  return to.port != 0;
}

// By memory; false if the kernel has to do it.
bool send_by_memory(UdpSocket& socket, int fd, Target& target, const msghdr& message, int flags,
                    std::size_t bytes) noexcept {
  constexpr int kPlainFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
  OutFlow& flow = socket.out[target.flow];
  const std::uint64_t now = now_ticks();
  flow.sender.note_processor(this_processor());
  if (now - flow.checked_at > kUdpCheckTicks) {
    flow.checked_at = now;
    udp_check_receiver(socket, fd, target);
    if (target.state != Target::kJoined) return false;
  }
  if (message.msg_controllen != 0 || (flags & ~kPlainFlags) != 0 || bytes > kMostDatagram ||
      socket.corked.load(std::memory_order_relaxed))
    return false;
  if (!flow.sender.send(message.msg_iov, message.msg_iovlen, bytes)) {
    if (flow.sender.receiver_gone()) udp_check_receiver(socket, fd, target);
    return false;
  }
  detail::udp_has_sent = true;
  if ((socket.unsettled.load(std::memory_order_relaxed) >> target.flow & 1) == 0)
    udp_note_unsettled(socket, fd, target.flow, now);
  if (flow.observed != nullptr) {
    observe::note_sent(&flow.observed->sent, nullptr, bytes);
    if (observe::is_tapped(&flow.observed->sent)) [[unlikely]]
      tap_datagram(flow.observed->sent, message, bytes);
  }
  if (target.counters != nullptr) target.counters->ring.count(bytes);
  return true;
}

// Whether the receiver may know of the flow by now, and counts what comes by the kernel.
bool may_be_joined(const UdpSocket& socket, const Target& target) noexcept {
  return target.state == Target::kJoined ||
         (target.state == Target::kJoining && socket.joining.asked);
}

// How many datagrams the kernel has made of a message that it has taken.
std::uint64_t datagrams_in(const msghdr& message, std::size_t bytes) noexcept {
  if (is_no_address(message.msg_control) || message.msg_controllen < sizeof(cmsghdr)) return 1;
  const auto* const end =
      static_cast<const std::byte*>(message.msg_control) + message.msg_controllen;
  for (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(head))) {
    std::uint16_t size = 0;
    // Another thread may have changed it since.
    if (head->cmsg_len < CMSG_LEN(0) ||
        head->cmsg_len > static_cast<std::size_t>(end - reinterpret_cast<const std::byte*>(head)))
      break;
    if (head->cmsg_level != SOL_UDP || head->cmsg_type != UDP_SEGMENT ||
        head->cmsg_len != CMSG_LEN(sizeof size))
      continue;
    std::memcpy(&size, CMSG_DATA(head), sizeof size);
    if (size != 0 && bytes != 0) return (bytes + size - 1) / size;
  }
  return 1;
}

// What the kernel has taken for a receiver with memory.
void count_sent(UdpSocket& socket, const Target& target, const msghdr& message,
                std::size_t bytes) noexcept {
  if (may_be_joined(socket, target)) {
    OutFlow& flow = socket.out[target.flow];
    flow.sender.sent_by_kernel(datagrams_in(message, bytes));
    if (flow.observed != nullptr) {
      observe::note_sent_by_kernel(&flow.observed->sent, nullptr, bytes);
      if (observe::is_tapped(&flow.observed->sent)) [[unlikely]]
        tap_datagram(flow.observed->sent, message, bytes);
    }
  }
  if (target.counters != nullptr) target.counters->kernel.count(bytes);
}

// By the kernel, without the lock: it may wait there. What goes to a receiver with memory counts, a
// part of a datagram when the rest follows.
ssize_t send_and_count(UdpSocket& socket, int fd, const msghdr& message, int flags,
                       const Endpoint& to, bool counts) noexcept {
  const ssize_t result = send_by_kernel(socket, fd, message, flags);
  const bool more = (flags & MSG_MORE) != 0;
  if (result >= 0) socket.corked.store(more, std::memory_order_relaxed);
  if (!counts) return result;
  const int error = errno;
  const Guard guard(socket.send_lock);
  const Target* const target = guard ? find_known(socket, to) : nullptr;
  if (target != nullptr && result >= 0 && !more)
    count_sent(socket, *target, message, static_cast<std::size_t>(result));
  if (target != nullptr && may_be_joined(socket, *target))
    socket.out[target->flow].sender.end_sending();
  errno = error;
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
  udp_note_settled(socket, target.flow);
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

ssize_t udp_send(UdpSocket& socket, int fd, const msghdr& message, int flags) noexcept {
  std::size_t bytes = 0;
  Endpoint to{};
  if (const int kept = udp_take_kept_error(socket); kept != 0) return with_errno(-kept);
  if (socket.kernel_only.load(std::memory_order_relaxed) || !measure(message, bytes)) [[unlikely]]
    return send_by_kernel(socket, fd, message, flags);
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
    if (may_be_joined(socket, *target)) socket.out[target->flow].sender.begin_sending();
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
