// SPDX-License-Identifier: Apache-2.0
#include "doctor/sockets.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace farcall::doctor {
namespace {

constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_v4(const Address& address) noexcept {
  return std::equal(kMapped.begin(), kMapped.end(), address.bytes.begin());
}

// "0100007F:1F90", or 32 digits before the colon: words in this machine's order, as they lie in
// memory.
bool parse_address(std::string_view text, Address& address) {
  const std::size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return false;
  address.bytes = {};
  std::size_t at = 0;
  if (colon == 8) {
    std::ranges::copy(kMapped, address.bytes.begin());
    at = kMapped.size();
  }
  for (std::size_t i = 0; i < colon; i += 8, at += 4) {
    const auto word = to_number(text.substr(i, 8), 16);
    if (!word) return false;
    const auto raw = static_cast<std::uint32_t>(*word);
    std::memcpy(address.bytes.data() + at, &raw, sizeof raw);
  }
  const auto port = to_number(text.substr(colon + 1), 16);
  if (!port || *port > 65535) return false;
  address.port = static_cast<std::uint16_t>(*port);
  return true;
}

void read_table(const Tree& tree, pid_t pid, const char* name, Transport transport,
                std::vector<InternetSocket>& sockets) {
  const std::string text = tree.text(fmt::format("/proc/{}/net/{}", pid, name)).value_or("");
  for (const std::string_view line : lines(text)) {
    const auto columns = words(line);
    if (columns.size() < 10) continue;
    InternetSocket socket{};
    socket.transport = transport;
    const auto state = to_number(columns[3], 16);
    const auto number = to_number(columns[9]);
    if (!state || !number || !parse_address(columns[1], socket.local) ||
        !parse_address(columns[2], socket.remote))
      continue;
    socket.state = static_cast<unsigned>(*state);
    socket.number = *number;
    sockets.push_back(socket);
  }
}

}  // namespace

bool Address::is_any() const noexcept {
  const std::size_t from = is_v4(*this) ? kMapped.size() : 0;
  return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(from), bytes.end(),
                     [](std::uint8_t byte) { return byte == 0; });
}

bool Address::is_loopback() const noexcept {
  if (is_v4(*this)) return bytes[12] == 127;
  return bytes[15] == 1 && std::all_of(bytes.begin(), bytes.begin() + 15,
                                       [](std::uint8_t byte) { return byte == 0; });
}

std::string to_text(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_v4(address)) {
    ::inet_ntop(AF_INET, address.bytes.data() + kMapped.size(), text.data(), text.size());
    return fmt::format("{}:{}", text.data(), address.port);
  }
  ::inet_ntop(AF_INET6, address.bytes.data(), text.data(), text.size());
  return fmt::format("[{}]:{}", text.data(), address.port);
}

std::vector<InternetSocket> read_internet_sockets(const Tree& tree, pid_t pid) {
  std::vector<InternetSocket> sockets;
  read_table(tree, pid, "tcp", Transport::tcp, sockets);
  read_table(tree, pid, "tcp6", Transport::tcp, sockets);
  read_table(tree, pid, "udp", Transport::udp, sockets);
  read_table(tree, pid, "udp6", Transport::udp, sockets);
  return sockets;
}

}  // namespace farcall::doctor
