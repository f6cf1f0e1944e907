// SPDX-License-Identifier: Apache-2.0
#include "capture/ip.hpp"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

namespace farcall::capture {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
constexpr std::size_t kIp4Bytes = 20;
constexpr std::size_t kIp6Bytes = 40;
constexpr std::size_t kTcpBytes = 20;
constexpr std::size_t kUdpBytes = 8;
constexpr unsigned kHops = 64;

// The sum of 16-bit words in network order, of which the first begins at an even place.
std::uint64_t sum_of(std::span<const std::byte> bytes) noexcept {
  std::uint64_t sum = 0;
  std::size_t i = 0;
  for (; i + 4 <= bytes.size(); i += 4) {
    std::uint32_t word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    sum += __builtin_bswap32(word);
  }
  std::uint32_t last = 0;
  for (unsigned shift = 24; i < bytes.size(); ++i, shift -= 8)
    last |= std::to_integer<std::uint32_t>(bytes[i]) << shift;
  return sum + last;
}

std::uint16_t folded(std::uint64_t sum) noexcept {
  while ((sum >> 16) != 0) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<std::uint16_t>(~sum);
}

}  // namespace

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

bool is_ipv4(const observe::Address& address) noexcept {
  return std::equal(kMapped.begin(), kMapped.end(), address.bytes.begin());
}

void IpHeader::put16(std::size_t at, unsigned value) noexcept {
  put8(at, value >> 8);
  put8(at + 1, value);
}

void IpHeader::put32(std::size_t at, std::uint32_t value) noexcept {
  put16(at, value >> 16);
  put16(at + 2, value & 0xffff);
}

IpHeader::IpHeader(const observe::Address& from, const observe::Address& to, std::uint8_t protocol,
                   std::size_t rest) {
  const bool four = is_ipv4(from) && is_ipv4(to);
  transport_ = four ? kIp4Bytes : kIp6Bytes;
  addresses_ = four ? 12 : 8;
  size_ = transport_;
  const std::size_t skipped = four ? kMapped.size() : 0;
  const std::size_t width = 16 - skipped;
  std::memcpy(&data_[addresses_], from.bytes.data() + skipped, width);
  std::memcpy(&data_[addresses_ + width], to.bytes.data() + skipped, width);
  if (!four) {
    put8(0, 0x60);
    put16(4, static_cast<unsigned>(std::min<std::size_t>(rest, 65'535)));
    put8(6, protocol);
    put8(7, kHops);
    return;
  }
  put8(0, 0x45);
  put16(2, static_cast<unsigned>(std::min<std::size_t>(kIp4Bytes + rest, 65'535)));
  put16(6, 0x4000);  // not to be fragmented
  put8(8, kHops);
  put8(9, protocol);
  put16(10, folded(sum_of({data_.data(), kIp4Bytes})));
}

std::uint16_t IpHeader::checksum(std::uint8_t protocol, std::span<const std::byte> payload,
                                 std::size_t rest) const noexcept {
  const std::span<const std::byte> all(data_);
  return folded(sum_of(all.subspan(addresses_, transport_ - addresses_)) +
                sum_of(all.subspan(transport_, size_ - transport_)) + sum_of(payload) + protocol +
                rest);
}

IpHeader IpHeader::tcp(const observe::Address& from, const observe::Address& to,
                       const TcpFields& fields, std::span<const std::byte> payload,
                       std::uint32_t missing) {
  const std::size_t rest = kTcpBytes + payload.size() + missing;
  IpHeader header(from, to, IPPROTO_TCP, rest);
  const std::size_t at = header.transport_;
  header.size_ = at + kTcpBytes;
  header.put16(at, from.port);
  header.put16(at + 2, to.port);
  header.put32(at + 4, fields.sequence);
  header.put32(at + 8, fields.ack ? fields.acknowledged : 0);
  header.put16(at + 12, 0x5000U | (fields.ack ? 0x10U : 0) | (fields.push ? 0x08U : 0) |
                            (fields.syn ? 0x02U : 0) | (fields.fin ? 0x01U : 0));
  header.put16(at + 14, 65'535);
  header.put16(at + 16, header.checksum(IPPROTO_TCP, payload, rest));
  return header;
}

IpHeader IpHeader::udp(const observe::Address& from, const observe::Address& to,
                       std::span<const std::byte> payload, std::uint32_t missing) {
  const std::size_t rest = kUdpBytes + payload.size() + missing;
  IpHeader header(from, to, IPPROTO_UDP, rest);
  const std::size_t at = header.transport_;
  header.size_ = at + kUdpBytes;
  header.put16(at, from.port);
  header.put16(at + 2, to.port);
  header.put16(at + 4, static_cast<unsigned>(std::min<std::size_t>(rest, 65'535)));
  const std::uint16_t sum = header.checksum(IPPROTO_UDP, payload, rest);
  header.put16(at + 6, sum == 0 ? 0xffff : sum);  // zero says that there is none
  return header;
}

}  // namespace farcall::capture
