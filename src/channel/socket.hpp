// SPDX-License-Identifier: Apache-2.0
//
// What the mechanisms made of sockets share.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <utility>

#include "channel/lifeline.hpp"
#include "farcall/channel.hpp"
#include "farcall/memory.hpp"

namespace farcall::channel {

// A connected, close-on-exec pair of unix sockets of this type. Throws SystemError.
std::pair<UniqueFd, UniqueFd> unix_pair(int type);

// Sets SO_SNDBUF or SO_RCVBUF, as far as /proc/sys/net/core allows; 0 leaves it as it is. The
// kernel doubles the value, to make up for its own overhead. Throws SystemError.
void set_buffer(int socket, int option, std::size_t bytes);
// SO_SNDBUF or SO_RCVBUF as the kernel counts it. Throws SystemError.
std::size_t buffer_size(int socket, int option);

// How long recv() or send() (SO_RCVTIMEO, SO_SNDTIMEO) blocks before it fails with EAGAIN.
// Throws SystemError.
void set_timeout(int socket, int option, int milliseconds);

// Receives one message: its first bytes into `into`, the others into `spill`. Returns its true
// length, which may be more than both hold; -1 with errno.
ssize_t receive_message(int socket, std::span<std::byte> into, std::span<std::byte> spill,
                        int flags);
// Sends one message, without SIGPIPE. Throws SystemError: EPIPE where nobody receives it.
void send_message(int socket, std::span<const std::byte> message);

// The longest message that this unix socket can send, by its SO_SNDBUF. Throws SystemError.
std::size_t longest_unix_message(int socket);
inline constexpr const char* kUnixLimitAdvice =
    "; it is the socket's SO_SNDBUF, which Options::buffer_bytes raises up to twice "
    "/proc/sys/net/core/wmem_max but not beyond 1 MiB, and write() splits what is longer";
// A pair of sockets of messages with a lifeline beside it, and one end of it out of its handle.
// Throws SystemError.
Handles create_message_sockets(int type, const Options& options);
struct MessageSocket {
  std::size_t longest;
  UniqueFd fd;
  Lifeline lifeline;
};
MessageSocket take_message_socket(Handle& handle);
// What write() splits into: the kernel wants the rest of a longer message in one piece of memory.
inline constexpr std::size_t kWritePiece = 65536;

}  // namespace farcall::channel
