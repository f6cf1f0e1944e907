// SPDX-License-Identifier: Apache-2.0
//
// Packets as they arrive on the sockets of doors, sessions and attachments.
#include <fcntl.h>

#include "door/fuzz/hand.hpp"
#include "farcall/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace farcall;
  using namespace farcall::door::fuzz;
  Input input(data, size);
  auto [here, there] = packet_socket_pair();
  int sent = 0;
  for (; !input.empty() && sent < 16; ++sent) send_packet(there.get(), input);
  there.reset();
  int arrived = 0;
  for (;; ++arrived) {
    require(arrived <= sent + 1);
    const Packet packet = take_packet(here.get());
    using Kind = Packet::Kind;
    if (packet.kind == Kind::closed || packet.kind == Kind::nothing) break;
    if (packet.kind == Kind::doorbell) require(packet.descriptors.empty());
    for (const UniqueFd& fd : packet.descriptors)
      require((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  }
  return 0;
}
