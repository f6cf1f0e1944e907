// SPDX-License-Identifier: Apache-2.0
//
// Hook: bind, for only UDP sockets are known before they are connected.
#include "preload/real.hpp"
#include "preload/udp/udp.hpp"

using namespace farcall::preload;

namespace {
constinit real::Direct<"bind", int(int, const sockaddr*, socklen_t), int, const sockaddr*,
                       socklen_t>
    next_bind{SYS_bind};
[[gnu::constructor]] void look_up() noexcept { next_bind.look_up(); }
}  // namespace

extern "C" int bind(int fd, const sockaddr* address, socklen_t size) {
  const int result = static_cast<int>(with_errno(next_bind(fd, address, size)));
  if (result == 0)
    if (UdpSocket* const udp = find_udp(fd)) udp_bound(*udp, fd);
  return result;
}
