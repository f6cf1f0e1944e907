// SPDX-License-Identifier: Apache-2.0
//
// What the environment asks of the preload library. Read once, without memory of the heap, before
// the first use; a bad value costs one warning and the default is used.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace farcall::preload {

enum class LogLevel : std::uint8_t { trace, debug, info, warn, error };

// With whom memory is shared.
enum class UidPolicy : std::uint8_t { same_user, same_user_or_root, anybody };

// The address and the port of one end, IPv4 written as the IPv6 address that maps it.
struct Endpoint {
  std::array<std::uint8_t, 16> address;
  std::uint16_t port;  // in the order of the host

  // In the pieces in which from() writes: a processor that reads across them waits for the writes.
  bool operator==(const Endpoint& other) const noexcept {
    const auto same = [&](std::size_t at, auto piece) {
      auto others = piece;
      std::memcpy(&piece, address.data() + at, sizeof piece);
      std::memcpy(&others, other.address.data() + at, sizeof others);
      return piece == others;
    };
    return same(12, std::uint32_t{}) && port == other.port && same(0, std::uint64_t{}) &&
           same(8, std::uint32_t{});
  }
  // False for what is neither AF_INET nor AF_INET6.
  static bool from(const sockaddr* from, Endpoint& endpoint) noexcept;
};

// The name of a unix socket: a path, or an abstract name, which begins with a zero. Empty: it has
// none.
struct UnixName {
  static constexpr std::size_t kMost = 108;
  std::array<char, kMost> bytes;
  std::uint8_t size;

  bool operator==(const UnixName& other) const noexcept {
    return size == other.size && std::memcmp(bytes.data(), other.bytes.data(), size) == 0;
  }
  // `size` as the kernel counts it; `from` is AF_UNIX.
  static UnixName from(const sockaddr* from, socklen_t size) noexcept;
};

// "127.0.0.1:6379", "[::1]:80", "*:8000-8999", "/run/redis.sock", "@name", "/run/postgresql/*"
struct EndpointPattern {
  std::array<std::uint8_t, 16> address;
  bool any_address;
  std::uint16_t first_port;
  std::uint16_t last_port;
  bool is_name = false;      // of a unix socket
  bool is_relative = false;  // a path from where the program is
  bool any_end = false;      // the name begins so
  UnixName name{};

  [[nodiscard]] bool matches(const Endpoint& endpoint) const noexcept;
  [[nodiscard]] bool matches(const UnixName& name) const noexcept;
};

struct EndpointList {
  static constexpr std::size_t kMost = 64;
  std::array<EndpointPattern, kMost> patterns;
  std::size_t count;

  template <class Name>
  [[nodiscard]] bool matches(const Name& name) const noexcept {
    for (std::size_t i = 0; i < count; ++i)
      if (patterns[i].matches(name)) return true;
    return false;
  }
};

struct Settings {
  bool enabled = true;
  bool tcp = true;
  bool udp = true;
  bool unix_streams = true;
  LogLevel log_level = LogLevel::warn;
  UidPolicy uids = UidPolicy::same_user;
  std::size_t ring_bytes = 256 * 1024;  // per direction: a power of two, at least a page
  unsigned max_sockets = 16'384;        // accelerated at once in this process and its children
  EndpointList accelerate{};            // none: all
  EndpointList exclude{};

  // Whether a connection between these two is wanted accelerated: if there is a list of those to
  // accelerate, one of the ends must be in it; none may be in the list of those to exclude.
  [[nodiscard]] bool wants(const Endpoint& one, const Endpoint& other) const noexcept;
  // The same for a unix socket whose server has that name.
  [[nodiscard]] bool wants(const UnixName& server) const noexcept;
};

// What an environment asks for. `complain` is called once for each value that cannot be used, and
// told why; the default is used then.
Settings read_settings(const char* const* environment,
                       void (*complain)(const char* sentence) noexcept) noexcept;

// What an environment says of a setting, such as FARCALL_RING_SIZE=15 for RING_SIZE; empty where it
// says nothing. Some have a name that begins with LOOPKB_ as well, which counts where the first is
// not set.
std::string_view find_setting(const char* const* environment, std::string_view name) noexcept;

// Those of this process, read from its environment when they are first asked for; complaints go to
// standard error.
const Settings& settings() noexcept;

}  // namespace farcall::preload
