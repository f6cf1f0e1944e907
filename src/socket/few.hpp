// SPDX-License-Identifier: Apache-2.0
//
// Packets of which it is not known how many descriptors they bring, where there is no room for as
// many as the kernel lets them bring.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>

#include "farcall/socket.hpp"

namespace farcall {

// More are not in any packet that opens something.
inline constexpr std::size_t kFewDescriptors = 4;

// As take_packet(), but of the descriptors no more than that get into the table: the rest the
// kernel lets go itself, and it may be long in closing. For threads that may wait for the sender.
Packet take_few(int packet_socket);

// What the next packet is like; nothing is taken, and no descriptor is made.
struct Next {
  std::optional<uid_t> sender;  // not known: there is none, or the other side has closed
  bool descriptors = false;     // whether it brings any
  std::size_t claimed = 0;      // how many it says, if it is a packet of ours
};
Next look_at_next(int packet_socket) noexcept;

}  // namespace farcall
