// SPDX-License-Identifier: Apache-2.0
#include "farcall/channel/end.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>

#include "farcall/error.hpp"

namespace farcall::channel {
namespace {

// What a stream gathers before it goes through the kernel, or takes from it at once.
constexpr std::size_t kStreamBuffer = 16384;

std::span<std::byte> as_bytes(char* data, std::size_t size) {
  return std::as_writable_bytes(std::span(data, size));
}
std::span<const std::byte> as_bytes(const char* data, std::size_t size) {
  return std::as_bytes(std::span(data, size));
}

}  // namespace

std::size_t Reader::read(std::span<std::byte> into) {
  if (into.empty()) return 0;
  if (gptr() == egptr()) return read_some(into);
  const std::size_t count = std::min(into.size(), static_cast<std::size_t>(egptr() - gptr()));
  std::memcpy(into.data(), gptr(), count);
  // gbump() takes an int, and a message left in the get area may be longer than that.
  setg(eback(), gptr() + count, egptr());
  return count;
}

std::size_t Reader::read_fully(std::span<std::byte> into) {
  std::size_t got = 0;
  while (got < into.size()) {
    const std::size_t count = read(into.subspan(got));
    if (count == 0) break;
    got += count;
  }
  return got;
}

std::optional<std::size_t> Reader::receive(std::span<std::byte> into) {
  if (gptr() != egptr())
    throw MisuseError("receive() in the middle of a message that read() or a stream has begun");
  return read_message(into);
}

std::optional<std::size_t> Reader::read_message(std::span<std::byte>) {
  throw MisuseError("receive() on a mechanism that keeps no message boundaries");
}

Reader::int_type Reader::underflow() {
  if (gptr() == egptr()) {
    buffer_.resize(kStreamBuffer);
    const std::size_t count = read_some(as_bytes(buffer_.data(), buffer_.size()));
    if (count == 0) return traits_type::eof();
    setg(buffer_.data(), buffer_.data(), buffer_.data() + count);
  }
  return traits_type::to_int_type(*gptr());
}

std::streamsize Reader::xsgetn(char* into, std::streamsize count) {
  if (count <= 0) return 0;
  const std::size_t wanted = static_cast<std::size_t>(count);
  std::size_t got = 0;
  while (got < wanted) {
    // What would fit into the buffer goes through it: the rest of it serves later calls.
    if (gptr() == egptr() && wanted - got < kStreamBuffer && underflow() == traits_type::eof())
      break;
    const std::size_t some = read(as_bytes(into + got, wanted - got));
    if (some == 0) break;
    got += some;
  }
  return static_cast<std::streamsize>(got);
}

Writer::Writer() noexcept : opened_by_(::getpid()), exceptions_(std::uncaught_exceptions()) {}

void Writer::write(std::span<const std::byte> bytes) {
  if (finished_) throw MisuseError("write() after finish()");
  flush_buffer();
  write_all(bytes);
}

void Writer::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) bytes = bytes.subspan(write_some(bytes));
}

void Writer::send(std::span<const std::byte> message) {
  if (finished_) throw MisuseError("send() after finish()");
  if (message.size() > max_message()) {
    throw SystemError(EMSGSIZE, "send " + std::to_string(message.size()) +
                                    " bytes: the longest message here is " +
                                    std::to_string(max_message()) + " bytes" + limit_advice());
  }
  flush_buffer();
  write_message(message);
}

void Writer::finish() {
  if (finished_) return;
  // If the last bytes cannot be written the reader must not be told that it has them all; it sees
  // this end die instead.
  finished_ = true;
  flush_buffer();
  setp(nullptr, nullptr);
  write_end();
}

void Writer::finish_quietly() noexcept {
  // A forked child that holds a copy of this object does not speak for the process that opened it,
  // and what an exception has cut short is not to look complete.
  if (::getpid() != opened_by_ || std::uncaught_exceptions() > exceptions_) return;
  try {
    finish();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): nobody is left to be told
  }
}

std::size_t Writer::max_message() const noexcept { return SIZE_MAX; }

std::string Writer::limit_advice() const { return {}; }

void Writer::write_message(std::span<const std::byte>) {
  throw MisuseError("send() on a mechanism that keeps no message boundaries");
}

Writer::int_type Writer::overflow(int_type character) {
  if (finished_) throw MisuseError("write to a stream after finish()");
  flush_buffer();
  if (buffer_.empty()) buffer_.resize(kStreamBuffer);
  setp(buffer_.data(), buffer_.data() + buffer_.size());
  if (!traits_type::eq_int_type(character, traits_type::eof())) {
    *pptr() = traits_type::to_char_type(character);
    pbump(1);
  }
  return traits_type::not_eof(character);
}

std::streamsize Writer::xsputn(const char* from, std::streamsize count) {
  if (count <= 0) return 0;
  const std::size_t size = static_cast<std::size_t>(count);
  if (static_cast<std::size_t>(epptr() - pptr()) < size) {
    overflow(traits_type::eof());
    if (size >= buffer_.size()) {
      write_all(as_bytes(from, size));
      return count;
    }
  }
  std::memcpy(pptr(), from, size);
  pbump(static_cast<int>(size));
  return count;
}

int Writer::sync() {
  flush_buffer();
  return 0;
}

void Writer::flush_buffer() {
  const std::size_t size = static_cast<std::size_t>(pptr() - pbase());
  if (size == 0) return;
  const char* data = pbase();
  // Emptied first: what cannot be written now is not tried again by the destructor.
  setp(nullptr, nullptr);
  write_all(as_bytes(data, size));
}

}  // namespace farcall::channel
