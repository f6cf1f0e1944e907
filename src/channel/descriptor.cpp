// SPDX-License-Identifier: Apache-2.0
#include "channel/descriptor.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "farcall/error.hpp"
#include "process/process.hpp"

namespace farcall::channel {

std::vector<UniqueFd> take_descriptors(Handle& handle, std::size_t count) {
  std::vector<UniqueFd> descriptors = std::move(handle.message.descriptors);
  handle.message.descriptors.clear();
  if (descriptors.size() != count)
    throw SystemError(EPROTO, "open an end: " + std::to_string(descriptors.size()) +
                                  " descriptors instead of " + std::to_string(count));
  for (UniqueFd& fd : descriptors) fd = beyond_standard_streams(std::move(fd));
  return descriptors;
}

UniqueFd take_descriptor(Handle& handle) { return std::move(take_descriptors(handle, 1).front()); }

void copy_value(const Handle& handle, std::span<std::byte> into) {
  if (handle.message.bytes.size() != into.size())
    throw SystemError(EPROTO, "open an end: a handle of the wrong size");
  std::memcpy(into.data(), handle.message.bytes.data(), into.size());
}

void throw_write_error(const char* what) {
  const bool gone = errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED ||
                    errno == ENOTCONN || errno == EIDRM;
  if (gone) errno = EPIPE;
  throw_errno(what);
}

std::size_t DescriptorReader::read_some(std::span<std::byte> into) {
  const auto read = [&] {
    return uninterrupted([&] { return ::read(fd_.get(), into.data(), into.size()); });
  };
  ssize_t count = read();
  const auto hung_up = [&] { return count < 0 && errno == EIO && end_ == End::nothing_or_eio; };
  // A terminal looks for bytes first and for its other end second. What came in between, with the
  // end close behind it, is there for the next read only.
  if (hung_up()) count = read();
  if (hung_up()) return 0;
  if (count < 0) throw_errno("read");
  return static_cast<std::size_t>(count);
}

std::size_t PipeWriter::write_some(std::span<const std::byte> bytes) {
  const ssize_t count = uninterrupted([&] { return signal_.write(fd_.get(), bytes); });
  if (count < 0) throw_write_error("write");
  return static_cast<std::size_t>(count);
}

std::size_t SocketWriter::write_some(std::span<const std::byte> bytes) {
  const ssize_t count =
      uninterrupted([&] { return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
  if (count < 0) throw_write_error("send");
  return static_cast<std::size_t>(count);
}

void SocketWriter::write_end() {
  // Said aloud, so that a process which holds a copy of the descriptor does not delay it.
  ::shutdown(fd_.get(), SHUT_WR);
  fd_.reset();
}

}  // namespace farcall::channel
