// SPDX-License-Identifier: Apache-2.0
#include "message/pieces.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"

namespace farcall::message {

std::vector<std::byte> fold(std::span<const Written> written, std::span<const std::byte> reply,
                            bool& in_pieces) {
  std::vector<Piece> pieces;
  for (const Written& piece : written)
    pieces.push_back({.offset = piece.offset, .length = piece.data.size()});
  if (!reply.empty()) pieces.push_back({.offset = 0, .length = reply.size()});
  std::vector<Piece> sorted = pieces;
  std::ranges::sort(sorted, {}, &Piece::offset);
  std::uint64_t end = 0;
  in_pieces = false;
  for (const Piece& piece : sorted) {
    in_pieces |= piece.offset > end;
    end = std::max(end, piece.offset + piece.length);
  }
  std::vector<std::byte> folded;
  if (!in_pieces) {
    folded.resize(end);
    for (const Written& piece : written)
      std::ranges::copy(piece.data, folded.begin() + static_cast<std::ptrdiff_t>(piece.offset));
    std::ranges::copy(reply, folded.begin());
    return folded;
  }
  const auto append = [&](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    folded.insert(folded.end(), bytes, bytes + size);
  };
  const PieceList list{.count = pieces.size()};
  append(&list, sizeof list);
  append(pieces.data(), pieces.size() * sizeof(Piece));
  for (const Written& piece : written) append(piece.data.data(), piece.data.size());
  append(reply.data(), reply.size());
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
