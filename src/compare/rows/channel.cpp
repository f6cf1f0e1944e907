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

void add(RowList& list, const AnyMechanism& mechanism, WaitMode wait) {
  const auto& properties = mechanism.properties();
  list.add(
      {.mechanism = std::string(properties.name),
       .engine = properties.waits ? "shared" : "linux",
       .wait = std::string(to_string(wait)),
       .description = std::string(properties.title),
       .waits = properties.waits},
      [&mechanism, wait](const Conditions& conditions) {
        return std::make_unique<ChannelConnection>(
            mechanism, Options{.buffer_bytes = conditions.depth_bytes, .wait = wait},
            conditions.message_bytes);
      },
      properties.boundaries ? Row::Refuses() : refuses_empty);
}

}  // namespace

void add_channels(RowList& list) {
  for (const AnyMechanism& mechanism : channel::all_mechanisms()) {
    if (!mechanism.properties().waits) {
      add(list, mechanism, WaitMode::block);
      continue;
    }
    for (const WaitMode wait : kAllWaits) add(list, mechanism, wait);
  }
}

}  // namespace farcall::compare
