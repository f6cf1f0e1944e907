// SPDX-License-Identifier: Apache-2.0
//
// Doors made by hand, and sessions with them.
#pragma once

#include <sys/un.h>

#include "call/raw.hpp"
#include "door/scoped_server.hpp"

namespace farcall::door::test {

using call::test::let_in;
using call::test::open_a_bad_session;
using call::test::RawSession;
using call::test::scribble;
using call::test::send_memory;
using call::test::send_nonsense;

// A socket that passes for a door with this id, and its other end.
struct FakeDoor {
  explicit FakeDoor(door_id_t id, unsigned attributes = 0) {
    auto [here, there] = packet_socket_pair();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const int length =
        std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                      "farcall/door/%016llx/%x/%x", id, attributes, ::rand() ^ ::getpid());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path)) + 1 +
                      static_cast<socklen_t>(length);
    EXPECT_EQ(::bind(there.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    inner = std::move(here);
    door = std::move(there);
  }
  UniqueFd inner;
  UniqueFd door;
};

}  // namespace farcall::door::test
