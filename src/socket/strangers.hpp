// SPDX-License-Identifier: Apache-2.0
//
// Packets of peers whose descriptors may be long in closing. What the kernel finds no room for when
// a packet is taken it closes there and then, and the last close of a socket that lingers, or of a
// file of FUSE, lasts as long as its sender likes. So a packet is looked at first, which gives
// duplicates of its descriptors; it is taken when there is room for all of them, and then no close
// is the last one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <utility>

#include "farcall/socket.hpp"

namespace farcall {

// More are not in any packet that opens something.
inline constexpr std::size_t kFewDescriptors = 4;
// As many more than it says may come into the table with a packet that lies.
inline constexpr std::size_t kUnaskedDescriptors = 8;
// With what would have been the sender's place.
inline constexpr std::size_t kMostOfFew = kFewDescriptors + kUnaskedDescriptors + 8;

// What the next packet is like; nothing is taken, and no descriptor is made.
struct Next {
  Packet::Kind kind = Packet::Kind::nothing;  // garbage: there is one; closed
  std::optional<uid_t> sender;                // where it is known
  bool descriptors = false;                   // whether it brings any
  std::size_t claimed = 0;                    // how many it says, if it is a packet of ours
};
// `tells_sender`: SO_PASSCRED is set.
Next look_at_next(int packet_socket, bool tells_sender = true) noexcept;

// As take_packet() of a packet that has been looked at. One that brings more descriptors than it
// says, than `most`, or than there is room for stays in the socket, which Packet::stays tells:
// nothing more can be taken until drop_next(). `into`: empty, and where room for kMostOfFew has
// been reserved there nothing is allocated. Throws SystemError.
Packet take_strangers_packet(int packet_socket, const Next& next,
                             std::size_t most = kFewDescriptors, ReceivedFds into = {});
// Looks and takes, from a socket that tells no sender.
inline Packet take_strangers_packet(int packet_socket, ReceivedFds into = {}) {
  return take_strangers_packet(packet_socket, look_at_next(packet_socket, false), kFewDescriptors,
                               std::move(into));
}
// Takes a packet and closes what it brings. For threads that may wait for the sender. Returns
// whether the next one belongs to it.
bool drop_next(int packet_socket) noexcept;
// The same with all that belong to it.
void drop_next_set(int packet_socket) noexcept;

}  // namespace farcall
