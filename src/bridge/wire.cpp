// SPDX-License-Identifier: Apache-2.0
#include "bridge/wire.hpp"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <limits>

namespace farcall::bridge {
namespace {

constexpr std::string_view kVersion = "1;k=";
constexpr std::string_view kKinds = "coprawdxn";
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;  // any number beyond is nonsense

class Writer {
 public:
  explicit Writer(Kind kind) : text_(kVersion) {
    text_.reserve(96);
    text_ += static_cast<char>(kind);
  }
  void field(char name, std::int64_t value, std::int64_t usual = 0) {
    if (value == usual) return;
    std::array<char, 24> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
    text_ += ';';
    text_ += name;
    text_ += '=';
    text_.append(digits.data(), end);
  }
  void field(char name, std::uint64_t value) { field(name, static_cast<std::int64_t>(value)); }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// An errno that callers of this machine can be told. Others come from machines that number
// differently, or from who means harm.
int defined(std::int64_t error) noexcept {
  const bool known = error <= EHWPOISON && ::strerrorname_np(static_cast<int>(error)) != nullptr;
  return known ? static_cast<int>(error) : EPROTO;
}

// Whether the value can be that of the field.
bool store(Header& header, char name, std::int64_t value) noexcept {
  constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();
  const auto natural = static_cast<std::uint64_t>(value);
  const bool size = value >= 0 && natural <= kMostBytes;
  const bool number = value >= -1 && value <= std::int64_t{0xffffffff};
  switch (name) {
    case 's': return header.total = natural, size;
    case 'o': return header.offset = natural, size;
    case 'w': return header.credit = natural, size && natural <= 1024;
    case 'm': return header.room = natural, size;
    case 'd': return header.deadline_ms = natural, size;
    case 'b': return header.bound_ms = natural, size;
    case 'e': return header.error = defined(value), value >= 0 && value < 4096;
    case 't': return header.status = static_cast<int>(value), value >= 0 && value <= kInt;
    case 'y': return header.not_taken = value == 1, true;
    case 'z': return header.message = value == 1, true;
    case 'q': return header.priority = static_cast<int>(value), value >= 0 && value < 256;
    case 'x': return header.code = static_cast<int>(value), value >= 0 && value <= kInt;
    case 'v': return header.value = value, true;
    case 'p': return header.caller.pid = value, number;
    case 'h': return header.caller.tid = value, number;
    case 'u': return header.caller.uid = value, number;
    case 'g': return header.caller.gid = value, number;
    case 'l': return header.caller.connection = value, true;
    default: return true;
  }
}

}  // namespace

std::string encode(const Header& header) {
  Writer writer(header.kind);
  writer.field('s', header.total);
  writer.field('o', header.offset);
  writer.field('w', header.credit);
  writer.field('m', header.room);
  writer.field('d', header.deadline_ms);
  writer.field('b', static_cast<std::int64_t>(header.bound_ms), std::int64_t{kUsualBoundMs});
  writer.field('e', std::int64_t{header.error});
  writer.field('t', std::int64_t{header.status});
  writer.field('y', std::int64_t{header.not_taken});
  writer.field('z', std::int64_t{header.message});
  writer.field('q', std::int64_t{header.priority});
  writer.field('x', std::int64_t{header.code});
  writer.field('v', header.value);
  writer.field('p', header.caller.pid);
  writer.field('h', header.caller.tid);
  writer.field('u', header.caller.uid, -1);
  writer.field('g', header.caller.gid, -1);
  writer.field('l', header.caller.connection);
  return writer.take();
}

std::optional<Header> parse(std::string_view text) noexcept {
  if (!text.starts_with(kVersion) || text.size() <= kVersion.size()) return std::nullopt;
  Header header;
  const char kind = text[kVersion.size()];
  if (kKinds.find(kind) == std::string_view::npos) return std::nullopt;
  header.kind = static_cast<Kind>(kind);
  text.remove_prefix(kVersion.size() + 1);
  while (!text.empty()) {
    if (text.size() < 4 || text[0] != ';' || text[2] != '=') return std::nullopt;
    const char name = text[1];
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data() + 3, text.data() + text.size(), value);
    if (error != std::errc() || !store(header, name, value)) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return header;
}

std::string_view text_in_subject(std::string_view subject) noexcept {
  // Others may have semicolons in theirs.
  const std::size_t kind = subject.find(";k=");
  const std::size_t begin = kind != std::string_view::npos && kind != 0
                                ? subject.rfind(';', kind - 1)
                                : std::string_view::npos;
  return begin == std::string_view::npos ? std::string_view() : subject.substr(begin + 1);
}

}  // namespace farcall::bridge
