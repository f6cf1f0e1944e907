// SPDX-License-Identifier: Apache-2.0
#include "preload/settings.hpp"

#include <cstring>

namespace farcall::preload {

bool Endpoint::from(const sockaddr* from, Endpoint& endpoint) noexcept {
  if (from->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, from, sizeof in);
    endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(endpoint.address.data() + 12, &in.sin_addr, 4);
    endpoint.port = ntohs(in.sin_port);
    return true;
  }
  if (from->sa_family != AF_INET6) return false;
  sockaddr_in6 in6;
  std::memcpy(&in6, from, sizeof in6);
  std::memcpy(endpoint.address.data(), &in6.sin6_addr, 16);
  endpoint.port = ntohs(in6.sin6_port);
  return true;
}

bool EndpointPattern::matches(const Endpoint& endpoint) const noexcept {
  return (any_address || address == endpoint.address) && endpoint.port >= first_port &&
         endpoint.port <= last_port;
}

bool EndpointList::matches(const Endpoint& endpoint) const noexcept {
  for (std::size_t i = 0; i < count; ++i)
    if (patterns[i].matches(endpoint)) return true;
  return false;
}

bool Settings::wants(const Endpoint& one, const Endpoint& other) const noexcept {
  if (exclude.count != 0 && (exclude.matches(one) || exclude.matches(other))) return false;
  return accelerate.count == 0 || accelerate.matches(one) || accelerate.matches(other);
}

const Settings& settings() noexcept {
  static constinit Settings all{};
  return all;
}

}  // namespace farcall::preload
