// SPDX-License-Identifier: Apache-2.0
#include "capture/ip.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace farcall::capture {
namespace {

observe::Address four(std::uint8_t last, std::uint16_t port) {
  observe::Address made{};
  made.bytes = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last};
  made.port = port;
  made.known = 1;
  return made;
}

observe::Address six(std::uint16_t port) {
  observe::Address made{};
  made.bytes[15] = 1;
  made.port = port;
  made.known = 1;
  return made;
}

std::vector<std::byte> bytes_of(const char* text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text);
  return {begin, begin + std::strlen(text)};
}

unsigned at16(std::span<const std::byte> bytes, std::size_t at) {
  return std::to_integer<unsigned>(bytes[at]) << 8 | std::to_integer<unsigned>(bytes[at + 1]);
}

// As a receiver checks: all words of 16 bits with the checksum among them give all ones.
unsigned sum_of(std::span<const std::byte> bytes, unsigned sum = 0) {
  for (std::size_t i = 0; i < bytes.size(); ++i)
    sum += std::to_integer<unsigned>(bytes[i]) << (i % 2 == 0 ? 8 : 0);
  while ((sum >> 16) != 0) sum = (sum & 0xffff) + (sum >> 16);
  return sum;
}

// Of what is behind the header of IP, with its pseudo header.
unsigned transport_sum(std::span<const std::byte> header, std::span<const std::byte> payload,
                       std::size_t ip_bytes, std::size_t addresses, unsigned protocol) {
  std::vector<std::byte> all(header.begin() + static_cast<std::ptrdiff_t>(ip_bytes), header.end());
  all.insert(all.end(), payload.begin(), payload.end());
  const auto length = static_cast<unsigned>(all.size());
  return sum_of(all, sum_of(header.subspan(addresses, ip_bytes - addresses)) + protocol + length);
}

TEST(IpHeader, OfTcpHasItsFieldsInTheirPlaces) {
  const auto payload = bytes_of("hello");
  const IpHeader header =
      IpHeader::tcp(four(1, 1000), four(2, 80),
                    {.sequence = 0x01020304, .acknowledged = 0x05060708, .push = true}, payload);
  const auto bytes = header.bytes();
  ASSERT_EQ(bytes.size(), 40U);
  EXPECT_EQ(at16(bytes, 0), 0x4500U);
  EXPECT_EQ(at16(bytes, 2), 45U);
  EXPECT_EQ(at16(bytes, 12), 0x7f00U);
  EXPECT_EQ(at16(bytes, 18), 0x0002U);
  EXPECT_EQ(at16(bytes, 20), 1000U);
  EXPECT_EQ(at16(bytes, 22), 80U);
  EXPECT_EQ(at16(bytes, 24), 0x0102U);
  EXPECT_EQ(at16(bytes, 26), 0x0304U);
  EXPECT_EQ(at16(bytes, 28), 0x0506U);
  EXPECT_EQ(at16(bytes, 30), 0x0708U);
  EXPECT_EQ(at16(bytes, 32), 0x5018U);  // 20 bytes, PSH and ACK
}

TEST(IpHeader, HasRightChecksums) {
  for (const char* text : {"", "h", "hi", "hey", "hello, and more than some words"}) {
    const auto payload = bytes_of(text);
    const IpHeader tcp = IpHeader::tcp(four(1, 1000), four(2, 80), {7, 8}, payload);
    EXPECT_EQ(sum_of(tcp.bytes().first(20)), 0xffffU) << text;
    EXPECT_EQ(transport_sum(tcp.bytes(), payload, 20, 12, 6), 0xffffU) << text;
    const IpHeader udp = IpHeader::udp(six(1000), six(53), payload);
    EXPECT_EQ(transport_sum(udp.bytes(), payload, 40, 8, 17), 0xffffU) << text;
  }
}

TEST(IpHeader, OfUdpCountsWhatIsMissing) {
  const auto payload = bytes_of("half");
  const IpHeader header = IpHeader::udp(four(1, 1), four(1, 2), payload, 4);
  EXPECT_EQ(at16(header.bytes(), 2), 36U);
  EXPECT_EQ(at16(header.bytes(), 24), 16U);
}

TEST(IpHeader, IsOfVersionSixWhereOneAddressIs) {
  const IpHeader header = IpHeader::udp(six(1), four(1, 2), {});
  ASSERT_EQ(header.bytes().size(), 48U);
  EXPECT_EQ(at16(header.bytes(), 0) >> 12, 6U);
  EXPECT_EQ(at16(header.bytes(), 4), 8U);
}

}  // namespace
}  // namespace farcall::capture
