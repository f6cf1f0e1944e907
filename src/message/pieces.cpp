// SPDX-License-Identifier: Apache-2.0
#include "message/pieces.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"

namespace farcall::message {

std::vector<std::byte> fold(std::span<const Written> written, std::span<const std::byte> reply,
                            bool& in_pieces) {
  std::vector<Piece> sorted;
  for (const Written& piece : written)
    sorted.push_back({.offset = piece.offset, .length = piece.data.size()});
  if (!reply.empty()) sorted.push_back({.offset = 0, .length = reply.size()});
  std::ranges::sort(sorted, {}, &Piece::offset);
  // What overlaps or follows at once is one piece: all of them fit into the room.
  std::vector<Piece> pieces;
  std::vector<std::size_t> begins;  // of their data
  std::size_t size = 0;
  for (const Piece& next : sorted) {
    const std::uint64_t end = pieces.empty() ? 0 : pieces.back().offset + pieces.back().length;
    if (pieces.empty() || next.offset > end) {
      pieces.push_back(next);
      begins.push_back(size);
      size += next.length;
    } else {
      const std::uint64_t more = std::max(end, next.offset + next.length) - end;
      pieces.back().length += more;
      size += more;
    }
  }
  in_pieces = pieces.size() > 1 || (!pieces.empty() && pieces.front().offset != 0);
  const PieceList list{.count = pieces.size()};
  const std::size_t bytes_of_pieces = pieces.size() * sizeof(Piece);
  const std::size_t header = in_pieces ? sizeof list + bytes_of_pieces : 0;
  std::vector<std::byte> folded(header + size);
  if (in_pieces) {
    std::memcpy(folded.data(), &list, sizeof list);
    std::memcpy(folded.data() + sizeof list, pieces.data(), bytes_of_pieces);
  }
  const auto put = [&](std::span<const std::byte> data, std::uint64_t offset) {
    if (data.empty()) return;
    const auto of =
        std::ranges::upper_bound(pieces, offset, {}, &Piece::offset) - pieces.begin() - 1;
    const auto which = static_cast<std::size_t>(of);
    const std::size_t at = header + begins[which] + (offset - pieces[which].offset);
    std::memcpy(folded.data() + at, data.data(), data.size());
  };
  for (const Written& piece : written) put(piece.data, piece.offset);
  put(reply, 0);
  return folded;
}

std::size_t unfold(std::span<const std::byte> rest, Buffers room) {
  PieceList list{};
  if (rest.size() < sizeof list) throw SystemError(EPROTO, "pieces of a reply");
  std::memcpy(&list, rest.data(), sizeof list);
  rest = rest.subspan(sizeof list);
  if (list.count > kMostPieces + 1 || rest.size() / sizeof(Piece) < list.count)
    throw SystemError(EPROTO, "pieces of a reply");
  std::vector<Piece> pieces(list.count);
  if (!pieces.empty()) std::memcpy(pieces.data(), rest.data(), pieces.size() * sizeof(Piece));
  rest = rest.subspan(pieces.size() * sizeof(Piece));
  std::size_t end = 0;
  for (const Piece& piece : pieces) {
    if (piece.length > rest.size()) throw SystemError(EPROTO, "pieces of a reply");
    const std::size_t done = scatter(rest.first(piece.length), room, piece.offset);
    rest = rest.subspan(piece.length);
    if (done != 0) end = std::max(end, piece.offset + done);
  }
  return end;
}

}  // namespace farcall::message
