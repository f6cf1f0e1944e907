// SPDX-License-Identifier: Apache-2.0
//
// Headers of IP, TCP and UDP for bytes that never had any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "observe/tap.hpp"

namespace farcall::capture {

struct TcpFields {
  std::uint32_t sequence;
  std::uint32_t acknowledged;
  bool syn = false;
  bool ack = true;
  bool fin = false;
  bool push = false;
};

class IpHeader {
 public:
  // `missing` bytes follow the payload that are not there: the lengths count them, and the checksum
  // cannot be right.
  static IpHeader tcp(const observe::Address& from, const observe::Address& to,
                      const TcpFields& fields, std::span<const std::byte> payload,
                      std::uint32_t missing = 0);
  static IpHeader udp(const observe::Address& from, const observe::Address& to,
                      std::span<const std::byte> payload, std::uint32_t missing = 0);

  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_.data(), size_}; }

  // Of payload that fits in one packet, whatever the addresses.
  static constexpr std::size_t kMostPayload = 65'535 - 40 - 20;

 private:
  IpHeader(const observe::Address& from, const observe::Address& to, std::uint8_t protocol,
           std::size_t rest);
  void put8(std::size_t at, unsigned value) noexcept { data_[at] = static_cast<std::byte>(value); }
  void put16(std::size_t at, unsigned value) noexcept;
  void put32(std::size_t at, std::uint32_t value) noexcept;
  std::uint16_t checksum(std::uint8_t protocol, std::span<const std::byte> payload,
                         std::size_t rest) const noexcept;

  std::array<std::byte, 60> data_{};
  std::size_t transport_;  // where the header behind that of IP begins
  std::size_t addresses_;
  std::size_t size_;
};

// Whether it is ::ffff:a.b.c.d.
bool is_ipv4(const observe::Address& address) noexcept;

}  // namespace farcall::capture
