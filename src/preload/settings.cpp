// SPDX-License-Identifier: Apache-2.0
#include "preload/settings.hpp"

#include <arpa/inet.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>
#include <string_view>

#include "preload/log.hpp"
#include "preload/real.hpp"

namespace farcall::preload {
namespace {

constexpr std::size_t kLeastRing = 4096;
constexpr std::size_t kMostRing = std::size_t{64} << 20;
constexpr std::size_t kDefaultMessages = 15;  // the predecessor's ring, where half of it is set
constexpr std::size_t kDefaultPacket = 1500;

// A sentence put together without memory of the heap; what does not fit is cut off.
class Sentence {
 public:
  Sentence& operator<<(std::string_view words) noexcept {
    for (const char c : words)
      if (length_ + 1 < sizeof text_) text_[length_++] = c;
    return *this;
  }
  [[nodiscard]] const char* text() noexcept {
    text_[length_] = '\0';
    return text_;
  }

 private:
  char text_[400];
  std::size_t length_ = 0;
};

std::string_view cut(std::string_view text, std::size_t from, std::size_t to) noexcept {
  return {text.data() + from, to - from};
}

bool parse_number(std::string_view text, std::size_t& number) noexcept {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  return error == std::errc{} && stop == end && !text.empty();
}

// "4096", "64K", "1M"
bool parse_bytes(std::string_view text, std::size_t& bytes) noexcept {
  if (text.empty()) return false;
  unsigned shift = 0;
  switch (text.back()) {
    case 'k':
    case 'K': shift = 10; break;
    case 'm':
    case 'M': shift = 20; break;
    default: break;
  }
  if (shift != 0) text.remove_suffix(1);
  if (!parse_number(text, bytes) || bytes > (kMostRing >> shift)) return false;
  bytes <<= shift;
  return true;
}

bool parse_address(std::string_view text, EndpointPattern& pattern) noexcept {
  pattern.any_address = text == "*";
  if (pattern.any_address) return true;
  char address[64];
  if (text.size() >= sizeof address) return false;
  std::memcpy(address, text.data(), text.size());
  address[text.size()] = '\0';
  if (::inet_pton(AF_INET6, address, pattern.address.data()) == 1) return true;
  pattern.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return ::inet_pton(AF_INET, address, pattern.address.data() + 12) == 1;
}

bool parse_ports(std::string_view text, EndpointPattern& pattern) noexcept {
  std::size_t first = 0;
  std::size_t last = 65535;
  if (text != "*") {
    const std::size_t dash = text.find('-');
    if (!parse_number(dash == text.npos ? text : cut(text, 0, dash), first)) return false;
    last = first;
    if (dash != text.npos && !parse_number(cut(text, dash + 1, text.size()), last)) return false;
  }
  if (first > last || last > 65535) return false;
  pattern.first_port = static_cast<std::uint16_t>(first);
  pattern.last_port = static_cast<std::uint16_t>(last);
  return true;
}

constexpr std::string_view kHere = "./";
constexpr std::string_view kAbove = "../";

// A path, or @ and an abstract name; with * at the end, all that begin so. Of ./ only that the path
// begins where the program is.
bool parse_name(std::string_view text, EndpointPattern& pattern) noexcept {
  pattern.is_name = true;
  pattern.is_relative = text.starts_with('.');
  if (text.starts_with(kHere)) text.remove_prefix(kHere.size());
  pattern.any_end = text.ends_with('*');
  if (pattern.any_end) text.remove_suffix(1);
  if (text.size() > UnixName::kMost) return false;
  std::memcpy(pattern.name.bytes.data(), text.data(), text.size());
  if (text.starts_with('@')) pattern.name.bytes[0] = '\0';
  pattern.name.size = static_cast<std::uint8_t>(text.size());
  return true;
}

// ADDRESS[:PORTS], an IPv6 address in brackets if ports follow; or the name of a unix socket.
bool parse_pattern(std::string_view text, EndpointPattern& pattern) noexcept {
  pattern.is_name = false;
  for (const std::string_view begin : {std::string_view("/"), std::string_view("@"), kHere, kAbove})
    if (text.starts_with(begin)) return parse_name(text, pattern);
  if (text.starts_with('[')) {
    const std::size_t bracket = text.find(']');
    if (bracket == text.npos || !parse_address(cut(text, 1, bracket), pattern)) return false;
    const std::string_view rest = cut(text, bracket + 1, text.size());
    if (rest.empty()) return parse_ports("*", pattern);
    return rest.starts_with(':') && parse_ports(cut(rest, 1, rest.size()), pattern);
  }
  const std::size_t colon = text.find(':');
  const bool bare = colon == text.npos || text.rfind(':') != colon;  // no port, or IPv6
  if (bare) return parse_address(text, pattern) && parse_ports("*", pattern);
  return parse_address(cut(text, 0, colon), pattern) &&
         parse_ports(cut(text, colon + 1, text.size()), pattern);
}

bool parse_list(std::string_view text, EndpointList& list) noexcept {
  list.count = 0;
  while (!text.empty()) {
    std::size_t comma = text.find(',');
    if (comma == text.npos) comma = text.size();
    if (list.count == EndpointList::kMost ||
        !parse_pattern(cut(text, 0, comma), list.patterns[list.count]))
      return false;
    ++list.count;
    text.remove_prefix(comma == text.size() ? comma : comma + 1);
  }
  return true;
}

// In capitals or not.
bool is_word(std::string_view text, std::string_view word) noexcept {
  const auto small = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
  if (text.size() != word.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (small(text[i]) != word[i]) return false;
  return true;
}

template <std::size_t Count>
bool find_word(std::string_view text, const std::string_view (&words)[Count],
               std::size_t& index) noexcept {
  for (index = 0; index < Count; ++index)
    if (is_word(text, words[index])) return true;
  return false;
}

bool parse_switch(std::string_view text, bool& on) noexcept {
  constexpr std::string_view kOn[] = {"yes", "true", "on", "1"};
  constexpr std::string_view kOff[] = {"no", "false", "off", "0"};
  std::size_t index = 0;
  on = find_word(text, kOn, index);
  return on || find_word(text, kOff, index);
}

std::string_view find_variable(const char* const* environment, std::string_view prefix,
                               std::string_view name) noexcept {
  for (const char* const* at = environment; at != nullptr && *at != nullptr; ++at) {
    std::string_view rest(*at);
    if (!rest.starts_with(prefix)) continue;
    rest.remove_prefix(prefix.size());
    if (!rest.starts_with(name)) continue;
    rest.remove_prefix(name.size());
    if (rest.starts_with('=')) return *at;
  }
  return {};
}

// Those that the predecessor had.
constexpr std::string_view kOlder[] = {"LOG_LEVEL", "MAX_SOCKETS", "PACKET_SIZE", "RING_SIZE"};

// One reading of an environment.
class Reading {
 public:
  Reading(const char* const* environment, void (*complain)(const char*) noexcept) noexcept
      : environment_(environment), complain_(complain) {}

  // Into defaults. In their place: a thread's stack may be smaller than they are.
  void read(Settings& all) noexcept {
    read_switch("ENABLED", all.enabled);
    read_switch("TCP", all.tcp);
    read_switch("UDP", all.udp);
    read_switch("UNIX", all.unix_streams);
    std::size_t index = 0;
    if (take("LOG_LEVEL", "trace, debug, info, warn or error", [&](auto text) {
          constexpr std::string_view kNames[] = {"trace", "debug", "info", "warn", "error"};
          return find_word(text, kNames, index);
        }))
      all.log_level = static_cast<LogLevel>(index);
    if (take("USERS", "same, root or any", [&](auto text) {
          constexpr std::string_view kNames[] = {"same", "root", "any"};
          return find_word(text, kNames, index);
        }))
      all.uids = static_cast<UidPolicy>(index);
    read_ring(all);
    std::size_t number = 0;
    if (take("MAX_SOCKETS", "a number from 1 to 1000000", [&](auto text) {
          return parse_number(text, number) && number >= 1 && number <= 1'000'000;
        }))
      all.max_sockets = static_cast<unsigned>(number);
    read_list("ACCELERATE", all.accelerate);
    read_list("EXCLUDE", all.exclude);
  }

 private:
  // Calls `parse` with the value of a setting. Returns whether there is one that can be used.
  template <class Parse>
  bool take(std::string_view name, std::string_view expected, Parse parse) noexcept {
    const std::string_view found = find_setting(environment_, name);
    if (found.empty()) return false;
    const std::size_t equals = found.find('=');
    const std::string_view value = cut(found, equals + 1, found.size());
    if (parse(value)) return true;
    Sentence sentence;
    sentence << cut(found, 0, equals) << "=\"" << value << "\" is not " << expected;
    complain_(sentence.text());
    return false;
  }

  void read_switch(std::string_view name, bool& value) noexcept {
    bool on = true;
    if (take(name, "yes or no, true or false, on or off, 1 or 0",
             [&](auto text) { return parse_switch(text, on); }))
      value = on;
  }

  void read_ring(Settings& all) noexcept {
    std::size_t messages = kDefaultMessages;
    std::size_t packet = kDefaultPacket;
    std::size_t bytes = 0;
    const bool has_messages =
        take("RING_SIZE", "a number of messages from 1 to 65536", [&](auto text) {
          return parse_number(text, messages) && messages >= 1 && messages <= 65536;
        });
    if (!has_messages) messages = kDefaultMessages;
    const bool has_packet = take(
        "PACKET_SIZE", "a number of bytes from 1 to 65536",
        [&](auto text) { return parse_bytes(text, packet) && packet >= 1 && packet <= 65536; });
    if (!has_packet) packet = kDefaultPacket;
    if (!take("RING_BYTES", "a number of bytes up to 64M, such as 65536, 256K or 1M",
              [&](auto text) { return parse_bytes(text, bytes) && bytes >= 1; })) {
      if (!has_messages && !has_packet) return;
      bytes = messages * packet;
    }
    all.ring_bytes = std::bit_ceil(bytes < kLeastRing  ? kLeastRing
                                   : bytes > kMostRing ? kMostRing
                                                       : bytes);
  }

  void read_list(std::string_view name, EndpointList& list) noexcept {
    if (!take(name,
              "a list of endpoints such as 127.0.0.1:6379,[::1]:80,*:8000-8999,/run/name.sock",
              [&](auto text) { return parse_list(text, list); }))
      list.count = 0;
  }

  const char* const* environment_;
  void (*complain_)(const char*) noexcept;
};

void complain_to_user(const char* sentence) noexcept {
  Sentence line;
  line << "farcall: " << sentence << "; the default is used\n";
  const char* const text = line.text();
  write_to_user(text, std::strlen(text));
}

}  // namespace

bool Endpoint::from(const sockaddr* from, Endpoint& endpoint) noexcept {
  if (from->sa_family == AF_INET) {
    sockaddr_in in;
    std::memcpy(&in, from, sizeof in);
    endpoint.address = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    std::memcpy(endpoint.address.data() + 12, &in.sin_addr, 4);
    endpoint.port = ntohs(in.sin_port);
    return true;
  }
  if (from->sa_family != AF_INET6) return false;
  sockaddr_in6 in6;
  std::memcpy(&in6, from, sizeof in6);
  std::memcpy(endpoint.address.data(), &in6.sin6_addr, 16);
  endpoint.port = ntohs(in6.sin6_port);
  return true;
}

UnixName UnixName::from(const sockaddr* from, socklen_t size) noexcept {
  constexpr socklen_t kBefore = offsetof(sockaddr_un, sun_path);
  UnixName name{};
  if (size <= kBefore) return name;
  const auto room = std::min<std::size_t>(size - kBefore, kMost);
  const char* const bytes = reinterpret_cast<const char*>(from) + kBefore;
  const bool is_path = *bytes != '\0';
  name.size = static_cast<std::uint8_t>(is_path ? ::strnlen(bytes, room) : room);
  std::memcpy(name.bytes.data(), bytes, name.size);
  return name;
}

bool EndpointPattern::matches(const Endpoint& endpoint) const noexcept {
  return !is_name && (any_address || address == endpoint.address) && endpoint.port >= first_port &&
         endpoint.port <= last_port;
}

bool EndpointPattern::matches(const UnixName& other) const noexcept {
  if (!is_name) return any_address && first_port == 0 && last_port == 65535;
  std::string_view spelled(other.bytes.data(), other.size);
  if (is_relative && (spelled.empty() || spelled[0] == '/' || spelled[0] == '\0')) return false;
  if (spelled.starts_with(kHere)) spelled.remove_prefix(kHere.size());
  const std::string_view wanted(name.bytes.data(), name.size);
  return any_end ? spelled.starts_with(wanted) : spelled == wanted;
}

bool Settings::wants(const Endpoint& one, const Endpoint& other) const noexcept {
  if (exclude.count != 0 && (exclude.matches(one) || exclude.matches(other))) return false;
  return accelerate.count == 0 || accelerate.matches(one) || accelerate.matches(other);
}

bool Settings::wants(const UnixName& server) const noexcept {
  return !(exclude.count != 0 && exclude.matches(server)) &&
         (accelerate.count == 0 || accelerate.matches(server));
}

std::string_view find_setting(const char* const* environment, std::string_view name) noexcept {
  const std::string_view found = find_variable(environment, "FARCALL_", name);
  if (!found.empty() || std::ranges::find(kOlder, name) == std::end(kOlder)) return found;
  return find_variable(environment, "LOOPKB_", name);
}

Settings read_settings(const char* const* environment,
                       void (*complain)(const char* sentence) noexcept) noexcept {
  Settings all;
  Reading(environment, complain).read(all);
  return all;
}

const Settings& settings() noexcept {
  enum : unsigned { kUnread, kBeingRead, kRead };
  static constinit Settings all{};
  static constinit std::atomic<unsigned> state{kUnread};
  // acquire: pairs with the release below, for what was read.
  unsigned now = state.load(std::memory_order_acquire);
  if (now == kRead) [[likely]]
    return all;
  // Two threads may come at once, or a signal handler while its thread reads: one reads, and to
  // the others nothing is switched on until it has.
  if (now == kUnread && state.compare_exchange_strong(now, kBeingRead)) {
    Reading(environ, complain_to_user).read(all);
    state.store(kRead, std::memory_order_release);
    return all;
  }
  static constexpr Settings kNothingYet{.enabled = false};
  return kNothingYet;
}

}  // namespace farcall::preload
