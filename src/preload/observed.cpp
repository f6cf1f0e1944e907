// SPDX-License-Identifier: Apache-2.0
#include "preload/observed.hpp"

#include <sys/un.h>

#include <algorithm>
#include <array>
#include <utility>

#include "preload/real.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {
namespace {

// Entries of connections that stay with the kernel, by the number they had.
constinit std::array<std::atomic<observe::Counters*>, kMostDescriptors> given_up{};

std::atomic<observe::Counters*>& given_up_at(int fd) noexcept {
  return given_up[static_cast<std::size_t>(fd)];
}

observe::Kind kind_of(Kind kind) noexcept {
  switch (kind) {
    case Kind::tcp: return observe::Kind::tcp;
    case Kind::unix_stream: return observe::Kind::unix_stream;
    case Kind::unix_packets: return observe::Kind::unix_packets;
  }
  return observe::Kind::none;
}

observe::Address address_at(int fd, long which) noexcept {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  Endpoint endpoint{};
  if (kernel(which, fd, &name, &size) < 0 ||
      !Endpoint::from(reinterpret_cast<const sockaddr*>(&name), endpoint))
    return {};
  return observed_address(endpoint);
}

// So that who captures finds a program before it has made a connection.
[[gnu::constructor]] void be_found() noexcept { observe::prepare(); }

}  // namespace

observe::Address observed_address(const Endpoint& endpoint) noexcept {
  observe::Address address{};
  std::copy(endpoint.address.begin(), endpoint.address.end(), address.bytes.begin());
  address.port = endpoint.port;
  address.known = 1;
  return address;
}

void observe_candidate(int fd, Side& side, const sockaddr* peer, socklen_t size) noexcept {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMostDescriptors)) return;
  observe::close(given_up_at(fd).exchange(nullptr, std::memory_order_relaxed));
  observe::Description end{.kind = kind_of(side.kind),
                           .role = side.connector ? observe::Role::client : observe::Role::server,
                           .carrier = observe::Carrier::trying};
  end.fd = fd;
  sockaddr_un own{};
  if (side.kind == Kind::tcp) {
    Endpoint there{};
    end.local = address_at(fd, SYS_getsockname);
    end.remote = Endpoint::from(peer, there) ? observed_address(there) : observe::Address{};
  } else {
    socklen_t own_size = sizeof own;
    const auto* name = reinterpret_cast<const sockaddr_un*>(peer);
    if (!side.connector) {
      if (kernel(SYS_getsockname, fd, &own, &own_size) < 0) own_size = 0;
      size = own_size;
      name = &own;
    }
    size = std::min<socklen_t>(size, sizeof(sockaddr_un));
    end.name = name->sun_path;
    end.name_bytes = size - std::min<std::size_t>(size, offsetof(sockaddr_un, sun_path));
    if (end.name_bytes != 0 && name->sun_path[0] != '\0')
      end.name_bytes =
          static_cast<std::size_t>(std::find(end.name, end.name + end.name_bytes, '\0') - end.name);
  }
  side.own().observed = observe::open(end);
}

void observe_joined(Side& side, int memory) noexcept {
  FARCALL_PROBE2(accelerate, side.own().observed, side.peer_pid);
  observe::set_session(side.own().observed, observe::inode_of(memory), side.peer_pid);
  observe::set_carrier(side.own().observed, observe::Carrier::memory);
}

void observe_given_up(int fd, Side& side, Reason reason) noexcept {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMostDescriptors)) return;
  // Nobody closes the number, nor counts, meanwhile.
  const Guard guard(life_lock());
  if (!guard || find_side(fd) != &side) return;
  const Guard receiving(side.receive_lock);
  const Guard sending(side.send_lock);
  if (!receiving || !sending || side.stage.load(std::memory_order_relaxed) != Side::kNever) return;
  observe::Counters* const entry = std::exchange(side.own().observed, nullptr);
  if (entry == nullptr) return;
  observe::forget_sleep(entry->received);
  observe::set_session(entry, observe::inode_of(fd), side.peer_pid);
  observe::set_carrier(entry, observe::Carrier::kernel, observed_reason(reason));
  observe::close(given_up_at(fd).exchange(entry, std::memory_order_relaxed));
}

void observe_left_by_peer(const Side& side) noexcept {
  observe::Counters* const entry = side.own().observed;
  // Where this end has left as well, it has said why.
  if (observe::carrier_of(*entry) == observe::Carrier::memory)
    observe::set_carrier(entry, observe::Carrier::kernel, observe::kLeftByPeer);
}

observe::Counters* observe_flow(observe::Role role, int fd, int memory, const Endpoint& local,
                                const Endpoint& remote) noexcept {
  observe::Description end{.kind = observe::Kind::udp,
                           .role = role,
                           .carrier = role == observe::Role::writer ? observe::Carrier::trying
                                                                    : observe::Carrier::memory};
  end.fd = fd;
  end.session = observe::inode_of(memory);
  end.local = observed_address(local);
  end.remote = observed_address(remote);
  return observe::open(end);
}

namespace {

observe::Passed passed_of(const Side& side) noexcept {
  return {.sent = side.bytes_sent.load(std::memory_order_relaxed),
          .received = side.bytes_received.load(std::memory_order_relaxed)};
}

// In pieces, as many parts as there are.
void tap_parts(observe::Half& half, const Moved& moved, std::size_t bytes,
               observe::Passed passed) noexcept {
  Span span(moved.parts, moved.count);
  span.skip(span.left() - std::min(span.left(), moved.left));
  std::uint64_t& offset = observe::is_sent(&half) ? passed.sent : passed.received;
  iovec parts[kParts];
  while (bytes != 0) {
    const std::size_t count = span.parts(parts, kParts, bytes);
    std::size_t size = 0;
    for (std::size_t i = 0; i < count; ++i) size += parts[i].iov_len;
    span.skip(size);
    // What stands nowhere is told of, and missing.
    if (span.left() == 0 || count == 0) size = bytes;
    observe::tap(half, parts, count, size, passed);
    offset += size;
    bytes -= size;
  }
}

}  // namespace

void tap_sent(Side& side, const Moved& moved, std::size_t bytes) noexcept {
  tap_parts(side.own().observed->sent, moved, bytes, passed_of(side));
}

void tap_received(Side& side, const Moved& moved, std::size_t bytes) noexcept {
  tap_parts(side.own().observed->received, moved, bytes, passed_of(side));
}

void tap_datagram(observe::Half& half, const msghdr& message, std::size_t bytes) noexcept {
  observe::tap(half, message.msg_iov, message.msg_iovlen, bytes, {});
}

void observe_closed(const Side& side) noexcept {
  observe::Counters* const entry = side.own().observed;
  if (entry != nullptr && observe::is_tapped(&entry->sent)) [[unlikely]]
    observe::tap_closed(entry->sent, passed_of(side));
}

void stop_observing(Side& side) noexcept {
  observe::close(std::exchange(side.own().observed, nullptr));
}

}  // namespace farcall::preload
