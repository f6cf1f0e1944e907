// SPDX-License-Identifier: Apache-2.0
//
// Handles made of descriptors, and the ends that are a stream of bytes behind one descriptor.
#pragma once

#include <cerrno>
#include <cstring>
#include <type_traits>
#include <vector>

#include "channel/sigpipe.hpp"
#include "farcall/channel/mechanism.hpp"
#include "memory/standard_streams.hpp"

namespace farcall::channel {

// Repeats a system call that signals interrupt.
template <class Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// A handle with these descriptors, in this order; none is one of the standard streams'.
template <class... Fds>
Handle handle_of(Fds... fds) {
  Handle handle;
  (handle.message.descriptors.push_back(beyond_standard_streams(std::move(fds))), ...);
  return handle;
}
// Takes the descriptors out of a handle, which may have come from another process, and then be the
// standard streams'. Throws SystemError: EPROTO unless there are `count`.
std::vector<UniqueFd> take_descriptors(Handle& handle, std::size_t count);
// The same for a mechanism that has but one.
UniqueFd take_descriptor(Handle& handle);

// The few bytes of a handle, as a value.
template <class T>
void put_value(Handle& handle, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = std::as_bytes(std::span(&value, 1));
  handle.message.bytes.assign(bytes.begin(), bytes.end());
}
void copy_value(const Handle& handle, std::span<std::byte> into);
// Throws SystemError: EPROTO if the handle has not as many bytes as a T.
template <class T>
T get_value(const Handle& handle) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  copy_value(handle, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// Throws the current errno as a writer's error: EPIPE where it says that the reader has gone.
[[noreturn]] void throw_write_error(const char* what);

// Reads with read(2). The end is a read of nothing; on a terminal it is EIO.
class DescriptorReader final : public Reader {
 public:
  enum class End { nothing, nothing_or_eio };
  explicit DescriptorReader(UniqueFd fd, End end = End::nothing) : fd_(std::move(fd)), end_(end) {}

 protected:
  std::size_t read_some(std::span<std::byte> into) override;

 private:
  UniqueFd fd_;
  End end_;
};

// Writes to a pipe or FIFO, without SIGPIPE; the end is the descriptor's end.
class PipeWriter final : public Writer {
 public:
  explicit PipeWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  ~PipeWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override;
  void write_end() override { fd_.reset(); }

 private:
  UniqueFd fd_;
  PipeSignal signal_;
};

// Writes to a connected stream socket with send(2).
class SocketWriter final : public Writer {
 public:
  explicit SocketWriter(UniqueFd fd) : fd_(std::move(fd)) {}
  ~SocketWriter() override { finish_quietly(); }

 protected:
  std::size_t write_some(std::span<const std::byte> bytes) override;
  void write_end() override;

 private:
  UniqueFd fd_;
};

}  // namespace farcall::channel
