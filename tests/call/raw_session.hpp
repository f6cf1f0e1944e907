// SPDX-License-Identifier: Apache-2.0
//
// A session made by hand, so that every bit can be wrong.
#pragma once

#include <sys/mman.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>

#include "call/session.hpp"
#include "farcall/peer.hpp"

namespace farcall::test {

// What a client shares with the server. Throws SystemError where the server has hung up.
struct RawSession {
  explicit RawSession(int port, bool formatted = true, bool sent = true)
      : memory(SharedMemory::create(call::kSessionBytes)) {
    void* address =
        ::mmap(nullptr, memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
    mapping = Mapping(address, memory.size());
    if (formatted) control().magic = call::SessionControl::kMagic;
    auto [here, there] = packet_socket_pair();
    socket = std::move(here);
    other_end = std::move(there);
    if (sent)
      send_descriptors(port, std::array{memory.fd(), other_end.get()}, call::kPurposeSession);
  }
  [[nodiscard]] call::SessionControl& control() const {
    return *reinterpret_cast<call::SessionControl*>(mapping.data());
  }
  // Gives the turn to the server, and rings.
  void give(call::Kind kind, std::uint32_t number, std::uint16_t size = 0,
            std::uint8_t flags = 0) const {
    control().slot.turn =
        call::Turn{.number = number, .kind = kind, .flags = flags, .size = size}.pack();
    (void)!::send(socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  [[nodiscard]] call::Turn turn() const { return call::Turn::unpack(control().slot.turn.load()); }

  SharedMemory memory;
  Mapping mapping;
  UniqueFd socket;
  UniqueFd other_end;
};

}  // namespace farcall::test
