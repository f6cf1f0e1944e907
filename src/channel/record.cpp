// SPDX-License-Identifier: Apache-2.0
#include "channel/record.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

[[noreturn]] void throw_too_long(std::size_t size, std::size_t room) {
  throw SystemError(EMSGSIZE, "receive a message of " + std::to_string(size) + " bytes into " +
                                  std::to_string(room));
}

}  // namespace

std::span<std::byte> RecordReader::spill() {
  if (spill_.empty()) spill_.resize(longest_);
  return std::as_writable_bytes(std::span(spill_));
}

std::size_t RecordReader::read_some(std::span<std::byte> into) {
  const std::span<std::byte> rest = into.size() < longest_ ? spill() : std::span<std::byte>();
  for (;;) {
    const auto size = take(into, rest);
    if (!size) return 0;
    if (*size > into.size() + rest.size()) throw_too_long(*size, into.size() + rest.size());
    if (*size > into.size()) {
      setg(spill_.data(), spill_.data(), spill_.data() + (*size - into.size()));
      return into.size();
    }
    // Messages of no bytes are nothing to a reader of bytes.
    if (*size > 0) return *size;
  }
}

std::optional<std::size_t> RecordReader::read_message(std::span<std::byte> into) {
  const auto size = take(into, {});
  if (size && *size > into.size()) throw_too_long(*size, into.size());
  return size;
}

RecordReader::int_type RecordReader::underflow() {
  if (gptr() == egptr()) {
    const std::size_t size = read_some(spill());
    if (size == 0) return traits_type::eof();
    setg(spill_.data(), spill_.data(), spill_.data() + size);
  }
  return traits_type::to_int_type(*gptr());
}

std::size_t RecordWriter::write_some(std::span<const std::byte> bytes) {
  const std::size_t size = std::min(bytes.size(), piece_);
  write_message(bytes.first(size));
  return size;
}

}  // namespace farcall::channel
