// SPDX-License-Identifier: Apache-2.0
//
// Hook: bind, for only UDP sockets are known before they are connected.
#include "preload/real.hpp"
#include "preload/udp.hpp"

using namespace farcall::preload;

extern "C" int bind(int fd, const sockaddr* address, socklen_t size) {
  const int result = static_cast<int>(with_errno(kernel(SYS_bind, fd, address, size)));
  if (result == 0)
    if (UdpSocket* const udp = find_udp(fd)) udp_bound(*udp, fd);
  return result;
}
