// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cerrno>

#include "message/shared.hpp"

namespace farcall::message {

bool SharedPendingReply::is_of(const Channel& that) const noexcept { return &channel == &that; }

void SharedPendingReply::done() noexcept {
  written_.clear();
  give_back();
  channel.give_back(*this);
}

std::size_t SharedPendingReply::read(std::size_t offset, Buffers to) {
  if (incoming.known_abandoned()) throw SystemError(ESRCH, "the client has gone");
  const std::span<const std::byte> data = incoming.data();
  return offset >= data.size() ? 0 : scatter(data.subspan(offset), to);
}

std::size_t SharedPendingReply::write(std::size_t offset, Buffers from) {
  if (incoming.known_abandoned()) throw SystemError(ESRCH, "the client has gone");
  if (offset >= room) return 0;
  if (written_.size() >= kMostPieces) throw SystemError(ENOBUFS, "too many writes");
  const std::size_t length = std::min(size_of(from), room - offset);
  if (length == 0) return 0;
  Written piece{.offset = offset, .data = std::vector<std::byte>(length)};
  gather(from, piece.data);
  written_.push_back(std::move(piece));
  return length;
}

void SharedPendingReply::reply(int status, int error, Buffers data, bool coming_back) {
  bool there = !incoming.known_abandoned();
  if (there && error != 0) {
    there = channel.answer(*this, {}, kFailed | error, coming_back);
  } else if (there) {
    const Gathered whole(data);
    const auto reply = whole.bytes().first(std::min(whole.bytes().size(), room));
    const std::int64_t plain = static_cast<std::uint32_t>(status);
    if (written_.empty()) [[likely]] {
      there = channel.answer(*this, reply, plain, coming_back);
    } else {
      bool in_pieces = false;
      const std::vector<std::byte> folded = fold(written_, reply, in_pieces);
      there = channel.answer(*this, folded, in_pieces ? plain | kPieces : plain, coming_back);
    }
  }
  if (there) return;
  const process::NoCancel guard;
  incoming = Incoming();
  throw SystemError(ESRCH, "the client has gone");
}

}  // namespace farcall::message
