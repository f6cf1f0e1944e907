// SPDX-License-Identifier: Apache-2.0
#include "door/name.hpp"

#include <sys/random.h>
#include <sys/socket.h>

#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <string_view>

#include "farcall/socket.hpp"
#include "farcall/wait.hpp"

namespace farcall::door {
namespace {

constexpr std::string_view kPrefix = "farcall/door/";

// Reads a number in hexadecimal and the slash behind it.
template <class Number>
bool read_part(std::string_view& text, Number& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, 16);
  if (error != std::errc() || end == text.data() + text.size() || *end != '/') return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return true;
}

}  // namespace

observe::Label label_of(const Name& name) noexcept {
  char text[24];
  const int size = std::snprintf(text, sizeof text, "%016" PRIx64, name.id);
  return observe::Label(observe::Kind::door,
                        std::string_view(text, static_cast<std::size_t>(size)));
}

std::uint64_t random_id() noexcept {
  std::uint64_t id = 0;
  if (::getrandom(&id, sizeof id, 0) != sizeof id)
    id = static_cast<std::uint64_t>(monotonic_ns()) ^ reinterpret_cast<std::uintptr_t>(&id) << 20;
  // A positive number for those who keep it in a signed one.
  id &= INT64_MAX;
  return id == 0 ? 1 : id;
}

std::string make_name(const Name& name) {
  char text[80];
  const int size = std::snprintf(text, sizeof text, "%.*s%016" PRIx64 "/%x/%" PRIx64,
                                 static_cast<int>(kPrefix.size()), kPrefix.data(), name.id,
                                 name.attributes, random_id());
  std::string whole(text, static_cast<std::size_t>(size));
  if (name.mode) {
    std::snprintf(text, sizeof text, "/%x", static_cast<unsigned>(*name.mode));
    whole += text;
  }
  return whole;
}

std::optional<Name> read_name(int fd) noexcept {
  const auto address = AbstractAddress::of(fd);
  if (!address) return std::nullopt;
  std::string_view text = address->name();
  if (!text.starts_with(kPrefix)) return std::nullopt;
  text.remove_prefix(kPrefix.size());
  Name name{};
  if (!read_part(text, name.id) || !read_part(text, name.attributes)) return std::nullopt;
  int type = 0;
  socklen_t type_size = sizeof type;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_size) != 0 || type != SOCK_SEQPACKET)
    return std::nullopt;
  // Whoever names a socket may write anything there.
  name.attributes &= kNamedAttributes;
  mode_t mode = 0;
  if (const auto last = text.find('/'); last != std::string_view::npos) {
    text.remove_prefix(last + 1);
    if (std::from_chars(text.data(), text.data() + text.size(), mode, 16).ec == std::errc())
      name.mode = mode & 07777;
  }
  return name;
}

}  // namespace farcall::door
