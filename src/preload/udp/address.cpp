// SPDX-License-Identifier: Apache-2.0
//
// What the kernel knows of addresses: which are of this machine, from which one sends to which, and
// which socket has one.
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "preload/diag.hpp"
#include "preload/real.hpp"
#include "preload/udp/udp.hpp"

namespace farcall::preload {

socklen_t udp_to_name(const Endpoint& endpoint, bool v4, sockaddr_in6& name) noexcept {
  name = {};
  if (v4) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(endpoint.port);
    std::memcpy(&four.sin_addr, endpoint.address.data() + 12, 4);
    std::memcpy(&name, &four, sizeof four);
    return sizeof four;
  }
  name.sin6_family = AF_INET6;
  name.sin6_port = htons(endpoint.port);
  std::memcpy(&name.sin6_addr, endpoint.address.data(), 16);
  return sizeof name;
}

namespace {

// The address that the kernel would send from to reach `to`.
bool source_towards(const Endpoint& to, Endpoint& source) noexcept {
  sockaddr_in6 name;
  const bool v4 = udp_is_v4(to);
  const socklen_t length = udp_to_name(to, v4, name);
  const long fd = kernel(SYS_socket, v4 ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  // Nothing is sent: connecting a UDP socket only chooses the route.
  const bool known = kernel(SYS_connect, fd, &name, length) == 0 &&
                     address_of(SYS_getsockname, static_cast<int>(fd), source);
  kernel(SYS_close, fd);
  return known;
}

}  // namespace

bool udp_is_v4(const Endpoint& endpoint) noexcept {
  return std::memcmp(endpoint.address.data(), kMappedV4.data(), kMappedV4.size()) == 0;
}

bool udp_source_of(int fd, const Endpoint& to, Endpoint& from) noexcept {
  if (!address_of(SYS_getsockname, fd, from) || from.port == 0) return false;
  if (!is_wildcard(from)) return true;
  Endpoint towards{};
  if (!source_towards(to, towards)) return false;
  from.address = towards.address;
  return true;
}

bool udp_is_local(const Endpoint& endpoint) noexcept {
  // One word for each address: its hash, and in the last bit whether it is local. Whoever finds its
  // place taken is not known; it takes the place only now and then, so that a crowd of addresses
  // costs no questions.
  constexpr std::uint64_t kLocal = 1;
  constexpr std::uint64_t kKnown = 2;
  constexpr std::size_t kPlaces = 4096;
  constexpr std::uint64_t kPause = 1000 * kTicksPerMicrosecond;
  static constinit std::array<std::atomic<std::uint64_t>, kPlaces> known{};
  static constinit std::atomic<std::uint64_t> replaced_at{0};
  if (udp_is_v4(endpoint)) {
    // The last one is for all who listen.
    constexpr std::array<std::uint8_t, 4> kForAll = {127, 255, 255, 255};
    if (endpoint.address[12] == 127)
      return !std::equal(kForAll.begin(), kForAll.end(), endpoint.address.begin() + 12);
  } else if (endpoint.address[0] == 0xff ||
             (endpoint.address[0] == 0xfe && (endpoint.address[1] & 0xc0) == 0x80)) {
    return false;  // a group, or an address of one link, which means nothing without that
  }
  std::uint64_t words[2];
  std::memcpy(words, endpoint.address.data(), sizeof words);
  std::uint64_t hash = (words[0] * 0x9e3779b97f4a7c15) ^ words[1];
  hash = (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ hash >> 32) & ~(kLocal | kKnown);
  std::atomic<std::uint64_t>& place = known[hash >> 52];
  const std::uint64_t found = place.load(std::memory_order_relaxed);
  if ((found & ~kLocal) == (hash | kKnown)) return (found & kLocal) != 0;
  if (found != 0) {
    const std::uint64_t now = now_ticks();
    if (now - replaced_at.load(std::memory_order_relaxed) < kPause) return false;
    replaced_at.store(now, std::memory_order_relaxed);
  }
  // What the kernel sends to itself it sends from the same address.
  Endpoint source{};
  const bool local = source_towards(endpoint, source) && source.address == endpoint.address;
  place.store(hash | kKnown | (local ? kLocal : 0), std::memory_order_relaxed);
  return local;
}

void udp_tell_name(sa_family_t family, const Endpoint& from, msghdr& message) noexcept {
  sockaddr_in6 name;
  const socklen_t length = udp_to_name(from, family == AF_INET, name);
  std::memcpy(message.msg_name, &name, std::min(length, message.msg_namelen));
  message.msg_namelen = length;
}

bool udp_still_there(const OutFlow& flow) noexcept {
  FoundSocket found{};
  const int result = find_receiver(flow.from, flow.target->to, found);
  return result == 0 ? found.cookie == flow.receiver_cookie : result != -ENOENT;
}

bool udp_receiver_lives(const OutFlow& flow) noexcept {
  return has_udp_socket(flow.target->to.port, flow.receiver_cookie);
}

}  // namespace farcall::preload
