// SPDX-License-Identifier: Apache-2.0
//
// How a descriptor is known to be a door: it is a packet socket whose name says so.
//
//   \0 farcall/door/<id>/<attributes>/<branch>[/<mode>]      all hexadecimal
#pragma once

#include <door.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "farcall/call.hpp"

namespace farcall::door {

// The attributes that a client can see in a door's name.
inline constexpr unsigned kNamedAttributes = DOOR_UNREF | DOOR_PRIVATE | DOOR_UNREF_MULTI |
                                             DOOR_REFUSE_DESC | DOOR_NO_CANCEL | DOOR_DEPLETION_CB;

struct Name {
  std::uint64_t id;
  unsigned attributes;  // of kNamedAttributes
  // Permissions of the file by which it was opened, as the server has said.
  std::optional<mode_t> mode = {};
};

// A name for one more branch of the door, unlike all others. Without the leading zero byte.
std::string make_name(const Name& name);
// What the descriptor's name says; nothing where it is no door.
std::optional<Name> read_name(int fd) noexcept;
std::uint64_t random_id() noexcept;
// What sessions of a door are called where it is not attached to a path.
observe::Label label_of(const Name& name) noexcept;

}  // namespace farcall::door
