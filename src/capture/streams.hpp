// SPDX-License-Identifier: Apache-2.0
//
// Makes segments of TCP of what both ends of connections have sent and received.
//
// A byte has its place in the stream: how many the sender had sent, or the receiver received,
// before it, by memory and by the kernel together. So each byte is written once, whoever told of
// it, in which order that may be, and what nobody told of is a gap, as in any capture that lost
// packets.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "capture/ip.hpp"
#include "capture/message.hpp"
#include "capture/pcapng.hpp"

namespace farcall::capture {

class Streams {
 public:
  // One packet; `payload` lives as long as the call.
  using Emit = std::function<void(const Message& of, Way way, const IpHeader& header,
                                  std::span<const std::byte> payload, std::string_view comment)>;
  // Of connections that were opened after `since` the beginning should be there.
  Streams(std::int64_t since, Emit emit) : since_(since), emit_(std::move(emit)) {}

  // In the order of time.
  void add(const Message& message);
  // Between so many pairs of addresses connections are known; of others the capture is in the
  // middle, as of those that were there before it began.
  static constexpr std::size_t kMostConnections = 1 << 16;

  // Bytes of which it is known that they passed, and that nobody told of until now.
  [[nodiscard]] std::uint64_t missing() const noexcept { return missing_; }

 private:
  struct Direction {
    bool begun = false;
    bool finished = false;
    std::uint64_t next = 0;                       // behind the last byte that was written
    std::uint64_t acknowledged = 0;               // of what this end is sent
    std::map<std::uint64_t, std::uint64_t> gaps;  // from, to
  };
  // The two ends in the order of their addresses. Direction i is what end i sends.
  struct Connection {
    observe::Address ends[2];
    std::int64_t opened[2] = {0, 0};  // as the ends say; 0: unknown
    std::int64_t closed[2] = {0, 0};  // when; 0: not yet
    std::int64_t last_message = 0;    // when it came
    std::uint32_t first[2] = {0, 0};  // sequence numbers
    Direction directions[2];
  };
  using Key = std::array<std::uint8_t, 36 + sizeof(uid_t)>;

  Connection& connection_of(const Message& message, std::size_t local);
  void begin(Connection& connection, std::size_t local, const Message& message);
  void add_bytes(Connection& connection, std::size_t from, const Message& message);
  void fill_gaps(Connection& connection, std::size_t from, const Message& message);
  void leave_gap(Direction& direction, std::uint64_t to);
  void write(const Connection& connection, std::size_t from, const Message& message,
             std::uint64_t begin, std::uint64_t end);
  void write_flags(const Connection& connection, std::size_t from, const Message& message,
                   const TcpFields& fields, std::string_view comment);
  void finish(Connection& connection, std::size_t from, const Message& message);
  void forget(const Connection& connection);
  void forget_old(std::int64_t now);
  void forget_half();

  std::int64_t since_;
  Emit emit_;
  std::map<Key, std::vector<Connection>> connections_;
  std::int64_t forgot_at_ = 0;
  std::int64_t forgotten_until_ = 0;  // of what was opened later nothing has been forgotten
  std::uint64_t missing_ = 0;
  std::size_t gaps_ = 0;  // of all connections
};

}  // namespace farcall::capture
