// SPDX-License-Identifier: Apache-2.0
//
// A reply whose server wrote here and there into its client's room: pieces, and where they go.
//
//   PieceList | Piece ... | the data of all pieces, one after the other
//
// None overlap, so that their data is no longer than the room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "message/buffers.hpp"

namespace farcall::message {

struct PieceList {
  std::uint64_t count;
};
struct Piece {
  std::uint64_t offset;
  std::uint64_t length;
};
inline constexpr std::size_t kMostPieces = 4096;
// What comes with the data at most.
inline constexpr std::size_t kPiecesBytes = sizeof(PieceList) + (kMostPieces + 1) * sizeof(Piece);

// What a server has written.
struct Written {
  std::size_t offset;
  std::vector<std::byte> data;
};

// All that was written, in that order, and the reply at the beginning last: one run of bytes, or,
// where some of the client's own bytes between are to stay, pieces.
std::vector<std::byte> fold(std::span<const Written> written, std::span<const std::byte> reply,
                            bool& in_pieces);
// Puts pieces where they belong, as far as there is room. Returns where the last byte ended that
// was put there. Throws SystemError: EPROTO for what fold() has not made.
std::size_t unfold(std::span<const std::byte> pieces, Buffers room);

}  // namespace farcall::message
