// SPDX-License-Identifier: Apache-2.0
//
// Every channel of the library, through its common interface. Those that wait in shared memory
// have a row for each way of waiting.
#include <cerrno>
#include <utility>

#include "compare/rows/rows.hpp"
#include "farcall/channel/mechanism.hpp"

namespace farcall::compare {
namespace {

using channel::AnyDuplex;
using channel::AnyMechanism;
using channel::DuplexEnd;
using channel::Options;

class ChannelEnd final : public Endpoint {
 public:
  ChannelEnd(DuplexEnd end, bool boundaries, std::size_t message_bytes)
      : end_(std::move(end)),
        as_messages_(boundaries && message_bytes <= end_.writer->max_message()),
        fragmented_(boundaries && !as_messages_) {}

  void send(std::span<const std::byte> message) override {
    if (as_messages_)
      end_.writer->send(message);
    else
      end_.writer->write(message);
  }
  void receive(std::span<std::byte> message) override {
    std::size_t received = 0;
    if (as_messages_) {
      const auto size = end_.reader->receive(message);
      if (!size) throw SystemError(EPIPE, "the other side has closed the channel");
      received = *size;
    } else {
      received = end_.reader->read_fully(message);
    }
    if (received != message.size())
      throw SystemError(EPROTO, "the message came short: " + std::to_string(received) + " of " +
                                    std::to_string(message.size()) + " bytes");
  }
  [[nodiscard]] bool fragmented() const override { return fragmented_; }

 private:
  DuplexEnd end_;
  bool as_messages_;
  bool fragmented_;
};

class ChannelConnection final : public Connection {
 public:
  ChannelConnection(const AnyMechanism& mechanism, const Options& options, std::size_t message)
      : duplex_(mechanism, options),
        boundaries_(mechanism.properties().boundaries),
        message_bytes_(message) {}
  std::unique_ptr<Endpoint> open(Role role) override {
    return std::make_unique<ChannelEnd>(
        role == Role::client ? duplex_.take_first() : duplex_.take_second(), boundaries_,
        message_bytes_);
  }

 private:
  AnyDuplex duplex_;
  bool boundaries_;
  std::size_t message_bytes_;
};

class ChannelRow final : public Row {
 public:
  ChannelRow(const AnyMechanism& mechanism, WaitMode wait)
      : Row({.mechanism = std::string(mechanism.properties().name),
             .engine = mechanism.properties().waits ? "shared" : "linux",
             .wait = std::string(to_string(wait)),
             .description = std::string(mechanism.properties().title),
             .waits = mechanism.properties().waits}),
        mechanism_(mechanism),
        wait_(wait) {}
  [[nodiscard]] std::string refuses(const Conditions& conditions) const override {
    return conditions.message_bytes == 0 && !mechanism_.properties().boundaries
               ? "a stream of bytes has no empty messages; the least is 1 byte"
               : "";
  }
  [[nodiscard]] std::unique_ptr<Connection> make(const Conditions& conditions) const override {
    return std::make_unique<ChannelConnection>(
        mechanism_, Options{.buffer_bytes = conditions.depth_bytes, .wait = wait_},
        conditions.message_bytes);
  }

 private:
  const AnyMechanism& mechanism_;
  WaitMode wait_;
};

}  // namespace

void add_channels(RowList& list) {
  for (const AnyMechanism& mechanism : channel::all_mechanisms()) {
    if (!mechanism.properties().waits) {
      list.add<ChannelRow>(mechanism, WaitMode::block);
      continue;
    }
    for (const WaitMode wait : {WaitMode::spin, WaitMode::adaptive, WaitMode::block})
      list.add<ChannelRow>(mechanism, wait);
  }
}

}  // namespace farcall::compare
