// SPDX-License-Identifier: Apache-2.0
//
// Replies in pieces: as any server may write them, and as ours does.
#include <array>

#include "door/fuzz/input.hpp"
#include "farcall/error.hpp"
#include "message/pieces.hpp"

namespace {

using namespace farcall;
using namespace farcall::message;
using farcall::door::fuzz::Input;
using farcall::door::fuzz::require;

constexpr std::size_t kRoom = 300;
constexpr std::byte kUntouched{0x5a};

// A room in three buffers, with margins between.
struct Room {
  std::array<std::byte, kRoom + 64> memory{};
  std::array<iovec, 3> buffers{};
  explicit Room(Input& input) {
    memory.fill(kUntouched);
    std::size_t left = kRoom;
    std::byte* at = memory.data() + 16;
    for (iovec& buffer : buffers) {
      const std::size_t size =
          &buffer == &buffers.back() ? left : input.number<std::uint8_t>() % (left + 1);
      buffer = {.iov_base = at, .iov_len = size};
      at += size + 16;
      left -= size;
    }
  }
  // The rooms' bytes, one after the other.
  [[nodiscard]] std::vector<std::byte> content() const {
    std::vector<std::byte> all(kRoom);
    gather(buffers, all);
    return all;
  }
  void check_margins() const {
    const std::byte* at = memory.data();
    for (const iovec& buffer : buffers) {
      const auto* begin = static_cast<const std::byte*>(buffer.iov_base);
      for (; at < begin; ++at) require(*at == kUntouched);
      at += buffer.iov_len;
    }
    for (; at < memory.data() + memory.size(); ++at) require(*at == kUntouched);
  }
};

void take_anything(Input input) {
  Room room(input);
  PieceList list{.count = input.number<std::uint8_t>()};
  if (list.count == 255) list.count = input.number<std::uint64_t>();
  std::vector<std::byte> pieces(sizeof list);
  std::memcpy(pieces.data(), &list, sizeof list);
  const auto append = [&](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    pieces.insert(pieces.end(), bytes, bytes + size);
  };
  for (std::uint64_t i = 0; i < list.count && !input.empty(); ++i) {
    Piece piece{.offset = input.number<std::uint16_t>() % (2 * kRoom),
                .length = input.number<std::uint8_t>()};
    if (piece.length == 255)
      piece = {.offset = input.number<std::uint64_t>(), .length = input.number<std::uint64_t>()};
    append(&piece, sizeof piece);
  }
  const auto rest = input.piece(4096);
  append(rest.data(), rest.size());
  try {
    require(unfold(pieces, room.buffers) <= kRoom);
  } catch (const SystemError& error) {
    require(error.code().value() == EPROTO);
  }
  room.check_margins();
}

void bring_back(Input input) {
  Room room(input);
  std::vector<std::byte> expected = room.content();
  std::vector<Written> written;
  std::size_t end = 0;
  const auto put = [&](std::size_t offset, std::span<const std::byte> data) {
    std::ranges::copy(data, expected.begin() + static_cast<std::ptrdiff_t>(offset));
    if (!data.empty()) end = std::max(end, offset + data.size());
  };
  const std::size_t count = input.number<std::uint8_t>() % 12;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = input.number<std::uint16_t>() % kRoom;
    const std::size_t length = 1 + input.number<std::uint8_t>() % (kRoom - offset);
    written.push_back({.offset = offset, .data = std::vector<std::byte>(length)});
    input.bytes(written.back().data.data(), length);
    put(offset, written.back().data);
  }
  std::vector<std::byte> reply(input.number<std::uint8_t>() % 64);
  input.bytes(reply.data(), reply.size());
  put(0, reply);
  bool in_pieces = false;
  const std::vector<std::byte> folded = fold(written, reply, in_pieces);
  if (in_pieces) {
    require(unfold(folded, room.buffers) == end);
  } else {
    require(folded.size() == end && scatter(folded, room.buffers) == end);
  }
  require(room.content() == expected);
  room.check_margins();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  take_anything(Input(data, size));
  bring_back(Input(data, size));
  return 0;
}
