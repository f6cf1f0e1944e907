// SPDX-License-Identifier: Apache-2.0
#include "channel/socket.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <climits>

#include "channel/descriptor.hpp"
#include "farcall/error.hpp"

namespace farcall::channel {

std::pair<UniqueFd, UniqueFd> unix_pair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void set_buffer(int socket, int option, std::size_t bytes) {
  if (bytes == 0) return;
  const int size = static_cast<int>(std::min<std::size_t>(bytes, INT_MAX / 2));
  if (::setsockopt(socket, SOL_SOCKET, option, &size, sizeof size) != 0)
    throw_errno("set the size of a socket's buffer");
}

std::size_t buffer_size(int socket, int option) {
  int size = 0;
  socklen_t length = sizeof size;
  if (::getsockopt(socket, SOL_SOCKET, option, &size, &length) != 0)
    throw_errno("get the size of a socket's buffer");
  return static_cast<std::size_t>(size);
}

void set_timeout(int socket, int option, int milliseconds) {
  const timeval time{.tv_sec = milliseconds / 1000, .tv_usec = (milliseconds % 1000) * 1000L};
  if (::setsockopt(socket, SOL_SOCKET, option, &time, sizeof time) != 0)
    throw_errno("set a socket's timeout");
}

ssize_t receive_message(int socket, std::span<std::byte> into, std::span<std::byte> spill,
                        int flags) {
  // With MSG_TRUNC the kernel tells the true length.
  if (spill.empty()) {
    return uninterrupted(
        [&] { return ::recv(socket, into.data(), into.size(), flags | MSG_TRUNC); });
  }
  std::array<iovec, 2> pieces{iovec{.iov_base = into.data(), .iov_len = into.size()},
                              iovec{.iov_base = spill.data(), .iov_len = spill.size()}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return uninterrupted([&] { return ::recvmsg(socket, &message, flags | MSG_TRUNC); });
}

void send_message(int socket, std::span<const std::byte> message) {
  if (uninterrupted([&] { return ::send(socket, message.data(), message.size(), MSG_NOSIGNAL); }) <
      0)
    throw_write_error("send");
}

std::size_t longest_unix_message(int socket) {
  constexpr std::size_t kKernelKeeps = 32;
  // Beyond this the kernel seldom has memory in one piece.
  constexpr std::size_t kOnePiece = std::size_t{1} << 20;
  return std::min(buffer_size(socket, SO_SNDBUF) - kKernelKeeps, kOnePiece);
}

Handles create_message_sockets(int type, const Options& options) {
  auto [reader, writer] = unix_pair(type);
  auto [reader_life, writer_life] = Lifeline::make();
  set_buffer(writer.get(), SO_SNDBUF, options.buffer_bytes);
  const std::uint64_t longest = longest_unix_message(writer.get());
  Handles handles{.reader = handle_of(std::move(reader), std::move(reader_life)),
                  .writer = handle_of(std::move(writer), std::move(writer_life))};
  put_value(handles.reader, longest);
  put_value(handles.writer, longest);
  return handles;
}

MessageSocket take_message_socket(Handle& handle) {
  const auto longest = get_value<std::uint64_t>(handle);
  auto fds = take_descriptors(handle, 2);
  return {.longest = longest, .fd = std::move(fds[0]), .lifeline = Lifeline(std::move(fds[1]))};
}

}  // namespace farcall::channel
