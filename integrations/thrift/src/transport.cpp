// SPDX-License-Identifier: Apache-2.0
//
// Memory for messages.
#include "farcall/thrift/transport.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "protocol.hpp"

namespace farcall::thrift {

using apache::thrift::transport::TTransportException;

namespace {

constexpr std::size_t kOutBytes = 4096;         // grows
constexpr std::size_t kInBytes = kOneWayBytes;  // likewise
// What a connection keeps when it has nothing to do.
constexpr std::size_t kKeep = std::size_t{4} << 20;

}  // namespace

MessageTransport::MessageTransport(std::shared_ptr<apache::thrift::TConfiguration> config)
    : TVirtualTransport(std::move(config)), out_(kOutBytes), in_(kInBytes) {
  forget_written();
  setReadBuffer(in_.data(), 0);
}

std::span<const std::byte> MessageTransport::written() const noexcept {
  return std::as_bytes(std::span(out_.data(), static_cast<std::size_t>(wBase_ - out_.data())));
}

void MessageTransport::forget_written() noexcept {
  if (out_.size() > kKeep) {
    out_.resize(kKeep);
    out_.shrink_to_fit();
  }
  setWriteBuffer(out_.data(), static_cast<std::uint32_t>(out_.size()));
}

void MessageTransport::received(std::size_t bytes) {
  setReadBuffer(in_.data(), static_cast<std::uint32_t>(bytes));
  resetConsumedMessageSize();
}

void MessageTransport::make_room(std::size_t bytes) {
  if (bytes <= in_.size()) return;
  setReadBuffer(in_.data(), 0);
  in_.resize(std::max(bytes, std::min<std::size_t>(in_.size() * 2, FARCALL_MESSAGE_MAX)));
}

std::size_t MessageTransport::keep_unread() {
  const std::size_t left = unread();
  if (left == 0) return 0;
  std::memmove(in_.data(), rBase_, left);
  setReadBuffer(in_.data(), static_cast<std::uint32_t>(left));
  if (in_.size() < left + kInBytes) {
    in_.resize(left + kInBytes);
    setReadBuffer(in_.data(), static_cast<std::uint32_t>(left));
  }
  return left;
}

void MessageTransport::give_room_back() noexcept {
  if (in_.size() <= kKeep || rBase_ != rBound_) return;
  in_.resize(kKeep);
  in_.shrink_to_fit();
  setReadBuffer(in_.data(), 0);
}

std::uint32_t MessageTransport::readEnd() {
  give_room_back();
  return 0;
}

void MessageTransport::writeSlow(const std::uint8_t* buffer, std::uint32_t length) {
  const std::size_t used = written().size();
  const std::size_t needed = used + length;
  if (needed > FARCALL_MESSAGE_MAX) {
    forget_written();  // the rest is never to come
    throw TTransportException(TTransportException::BAD_ARGS, "a message of more than 1 GiB");
  }
  try {
    out_.resize(std::min<std::size_t>(std::max(needed, out_.size() * 2), FARCALL_MESSAGE_MAX));
  } catch (const std::bad_alloc&) {
    // As an error of the transport it ends one client of a server, not the server.
    forget_written();
    throw TTransportException(TTransportException::INTERNAL_ERROR, "no memory for a message");
  }
  setWriteBuffer(out_.data(), static_cast<std::uint32_t>(out_.size()));
  std::memcpy(out_.data() + used, buffer, length);
  wBase_ += needed;
}

std::uint32_t MessageTransport::readSlow(std::uint8_t* buffer, std::uint32_t length) {
  if (rBase_ == rBound_ && !fill()) return 0;
  const auto now = std::min(length, static_cast<std::uint32_t>(rBound_ - rBase_));
  std::memcpy(buffer, rBase_, now);
  rBase_ += now;
  return now;
}

const std::uint8_t* MessageTransport::borrowSlow(std::uint8_t*, std::uint32_t*) {
  return nullptr;  // who borrows reads instead
}

}  // namespace farcall::thrift
