// SPDX-License-Identifier: Apache-2.0
#include "one_way.hpp"

#include <cstddef>
#include <string_view>

namespace farcall::thrift {
namespace {

constexpr unsigned kOneWay = 4;  // T_ONEWAY, the same in all protocols

std::uint32_t big_endian(std::span<const std::uint8_t> bytes) noexcept {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

// [1,"name",4,...
bool is_one_way_json(std::span<const std::uint8_t> message) noexcept {
  const std::string_view text(reinterpret_cast<const char*>(message.data()), message.size());
  constexpr std::string_view kBegin = "[1,\"";
  if (!text.starts_with(kBegin)) return false;
  std::size_t at = kBegin.size();
  while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2U : 1U;
  return at < text.size() && text.substr(at + 1).starts_with(",4,");
}

bool is_one_way_plain(std::span<const std::uint8_t> message) noexcept {
  constexpr std::size_t kHeader = 4;
  if (message.size() < kHeader) return false;
  // Binary: a version of 16 bits, then the type.
  if (message[0] == 0x80 && message[1] == 0x01) return message[3] == kOneWay;
  // Compact: its number, then version and type.
  if (message[0] == 0x82) return (message[1] & 0xffU) >> 5 == kOneWay;
  if (message[0] == '[') return is_one_way_json(message);
  // Binary as it was at first: the name and its length, then the type.
  const std::size_t name = big_endian(message);
  return name < message.size() - kHeader && message[kHeader + name] == kOneWay;
}

}  // namespace

bool is_one_way(std::span<const std::uint8_t> message) noexcept {
  constexpr std::size_t kFrame = 4;
  if (message.size() > kFrame && big_endian(message) == message.size() - kFrame)
    return is_one_way_plain(message.subspan(kFrame));
  return is_one_way_plain(message);
}

}  // namespace farcall::thrift
