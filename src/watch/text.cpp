// SPDX-License-Identifier: Apache-2.0
#include "watch/text.hpp"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <utility>

namespace farcall::watch {
namespace {

// How many bytes the character at the front has, if it is well-formed UTF-8; else 0.
std::size_t utf8_length(std::string_view bytes, std::uint32_t& code) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char first = at(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length == 0 || length > bytes.size()) return 0;
  static constexpr std::uint32_t kFirstBits[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  static constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  code = first & kFirstBits[length];
  for (std::size_t i = 1; i < length; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    code = (code << 6) | (at(i) & 0x3fU);
  }
  if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) return 0;
  return length;
}

// Letters of the usual scripts; not what controls, hides, reorders or is wider than a column.
bool is_plain(std::uint32_t code) {
  if (code < 0x80) return code >= ' ' && code != 0x7f && code != '\\';
  if (code < 0xa1 || code == 0xad) return false;
  return code < 0x300 || (code >= 0x370 && code < 0x483) || (code >= 0x48a && code < 0x590);
}

}  // namespace

std::string printable(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    std::uint32_t code = 0;
    const std::size_t length = utf8_length(bytes.substr(i), code);
    if (i == 0 && bytes[0] == '\0') {
      text += '@';
      i = 1;
    } else if (length != 0 && is_plain(code)) {
      text.append(bytes, i, length);
      i += length;
    } else {
      char escaped[5];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(bytes[i]));
      text += escaped;
      ++i;
    }
  }
  return text;
}

std::string to_text(const observe::Address& address) {
  if (address.known == 0) return {};
  static constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  char text[INET6_ADDRSTRLEN];
  const std::string port = std::to_string(address.port);
  if (std::equal(kMapped.begin(), kMapped.end(), address.bytes.begin())) {
    ::inet_ntop(AF_INET, address.bytes.data() + kMapped.size(), text, sizeof text);
    return std::string(text) + ":" + port;
  }
  ::inet_ntop(AF_INET6, address.bytes.data(), text, sizeof text);
  return "[" + std::string(text) + "]:" + port;
}

const char* to_text(observe::Kind kind) noexcept {
  switch (kind) {
    case observe::Kind::tcp: return "tcp";
    case observe::Kind::udp: return "udp";
    case observe::Kind::unix_stream: return "unix";
    case observe::Kind::unix_packets: return "unix-seq";
    case observe::Kind::ring: return "ring";
    case observe::Kind::call: return "call";
    case observe::Kind::door: return "door";
    case observe::Kind::channel: return "channel";
    case observe::Kind::broadcast: return "broadcast";
    case observe::Kind::none:
    case observe::Kind::count_: break;
  }
  return "unknown";
}

std::string program_of(std::string_view pid) {
  if (!std::ranges::all_of(pid, [](char c) { return c >= '0' && c <= '9'; })) return "?";
  std::ifstream file("/proc/" + std::string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name.empty() ? "?" : printable(name);
}

std::string unless_no_proc(std::string gone) {
  if (::access("/proc/self", F_OK) == 0) return gone;
  return "/proc is not there (mount -t proc proc /proc)";
}

const char* to_text(observe::Role role) noexcept {
  switch (role) {
    case observe::Role::client: return "client";
    case observe::Role::server: return "server";
    case observe::Role::writer: return "writer";
    case observe::Role::reader: return "reader";
    case observe::Role::none:
    case observe::Role::count_: break;
  }
  return "end";
}

const char* to_text(observe::Carrier carrier) noexcept {
  switch (carrier) {
    case observe::Carrier::trying: return "trying";
    case observe::Carrier::memory: return "memory";
    case observe::Carrier::kernel: return "kernel";
    case observe::Carrier::none:
    case observe::Carrier::count_: break;
  }
  return "unknown";
}

}  // namespace farcall::watch
