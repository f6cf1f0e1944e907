// SPDX-License-Identifier: Apache-2.0
//
// In what streams over TCP and over unix sockets differ before they are accelerated: how the two
// ends find each other, who holds the other end, and whether any byte has gone past the library.
#pragma once

#include <sys/un.h>

#include "preload/diag.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

// Where the connecting end of this connection listens for the accepting one, an abstract name.
// Zero, or the negative errno. ENOTCONN: it is not connected (yet, or any more); EAGAIN: who the
// peer is cannot be asked now.
int meeting_name(int fd, const Side& side, sockaddr_un& name, socklen_t& length) noexcept;

// The socket at the other end. Zero, or the negative errno, EAGAIN as above.
int find_peer(int fd, const Side& side, FoundSocket& found) noexcept;

enum class Agreement : std::uint8_t { agree, differ, moving, ending };
// Whether all bytes that the program has sent or received went through the library, so that its
// offsets are the kernel's; as far as that can be seen while other threads use the connection.
// Before the ends share memory, where the kernel counts bytes.
Agreement compare_offsets(int fd, Side& side) noexcept;
// The same where it does not: with what the other end has counted.
Agreement compare_with_peer(int fd, Side& side, const Direction& in, const Direction& out) noexcept;

// Bytes of a TCP connection that the kernel takes of this end, whatever becomes of it: beside what
// its receiver has not read. See RoomForAll.
std::size_t most_in_all(int fd) noexcept;
// Bytes per direction.
std::size_t ring_bytes_of(int fd, Kind kind) noexcept;

// Options that a socket may have from the one that listened, or from a program that was executed
// before, see changes_the_stream().
bool has_ordinary_options(int fd, Kind kind) noexcept;

// How many bytes a side has counted, and which halves no call is in the middle of.
struct OwnCounts {
  std::uint64_t sent, received;
  bool sending, receiving;

  bool operator==(const OwnCounts&) const noexcept = default;
};
OwnCounts own_counts(Side& side) noexcept;

}  // namespace farcall::preload
