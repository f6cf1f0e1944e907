// SPDX-License-Identifier: Apache-2.0
//
// The sockets of a network namespace, as the kernel lists them.
#pragma once

#include <sys/types.h>

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "doctor/tree.hpp"

namespace farcall::doctor {

// IPv4 is written as the IPv6 address that maps it.
struct Address {
  std::array<std::uint8_t, 16> bytes{};
  std::uint16_t port = 0;
  auto operator<=>(const Address&) const = default;

  [[nodiscard]] bool is_any() const noexcept;  // 0.0.0.0 or ::
  [[nodiscard]] bool is_loopback() const noexcept;
};
std::string to_text(const Address& address);  // "127.0.0.1:6379", "[::1]:80"

enum class Transport : std::uint8_t { tcp, udp };

struct InternetSocket {
  Transport transport;
  Address local;
  Address remote;
  unsigned state;  // TCP_ESTABLISHED and so on
  std::uint64_t number;
};

// Of the namespace that process is in.
std::vector<InternetSocket> read_internet_sockets(const Tree& tree, pid_t pid);

struct UnixSocket {
  std::uint64_t number;
  std::uint64_t peer;  // 0: none
  int type;            // SOCK_STREAM and so on
  std::string name;    // a path; of an abstract name @ and the rest; or empty
};

// Of this process's namespace, by sock_diag; none where the kernel does not tell.
std::vector<UnixSocket> ask_for_unix_sockets();

}  // namespace farcall::doctor
