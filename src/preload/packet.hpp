// SPDX-License-Identifier: Apache-2.0
//
// Messages of a unix socket of packets (SOCK_SEQPACKET), in the rings of streams (stream.hpp).
//
// All that stream.hpp says of a direction holds, with two differences. What the kernel carries is
// counted in messages, not bytes: marks, kernel_sent, kernel_taken, the doorbell. And a message
// lies in the ring whole or not at all, behind its length:
//
//   | length: 8 bytes | the message | room |      all of it: space_of_message(length)
//
// The room makes a message as large as the kernel would charge it to its sender, so that a ring
// holds no more messages than the kernel can be given in their place, and a sender is refused where
// the kernel would refuse it.
//
// A length is the word of the peer: who finds one that cannot be takes the peer for broken.
#pragma once

#include "preload/transfer.hpp"

namespace farcall::preload {

// As measured: a message of no bytes costs 768, long ones two and a half times their length.
constexpr std::uint64_t space_of_message(std::uint64_t length) noexcept {
  constexpr std::uint64_t kLeast = 768;
  constexpr std::uint64_t kShort = 192;
  return kLeast + (length <= kShort ? 0 : (length * 5 / 2 + 63) / 64 * 64);
}
// A longer one goes through the kernel with nothing in the ring before or behind it: it could not
// be given back, see handback.hpp.
constexpr bool is_for_kernel(std::uint64_t length, std::size_t ring_size) noexcept {
  return length > ring_size || space_of_message(length) > ring_size / 2;
}

struct RingMessage {
  std::uint64_t length;
  std::uint64_t space;
  iovec parts[2];  // the second may be empty
};
// The message at `position`, of `bytes` that lie there; false: there is none. Of `memory` only the
// bytes and the size are looked at.
bool message_at(const Ring& memory, std::uint64_t position, std::uint64_t bytes,
                RingMessage& found) noexcept;
// How many of the `bytes` at `position` are whole messages, at most `most`.
std::uint64_t whole_messages(const Ring& memory, std::uint64_t position, std::uint64_t bytes,
                             std::uint64_t most) noexcept;
// The space of the first `count` messages there; more than `bytes`: there are not so many.
std::uint64_t space_of_messages(const Ring& memory, std::uint64_t position, std::uint64_t bytes,
                                std::uint64_t count) noexcept;
// The sum of their lengths.
std::uint64_t lengths_of_messages(const Ring& memory, std::uint64_t position,
                                  std::uint64_t bytes) noexcept;

struct SentMessages {
  std::uint64_t space;  // of those that the kernel took
  std::size_t count;
  long error;  // 0: all; -EPROTO: something that is no message
};
// Sends the messages of `bytes` at `position` through the kernel, without waiting.
SentMessages send_messages(int fd, const Ring& memory, std::uint64_t position,
                           std::uint64_t bytes) noexcept;

// What came of a try, beside what transfer.hpp names: a message, maybe of no bytes. 0 is the end.
inline constexpr long kMessage = -100'002;

// Takes the next message, be it in the ring or in the kernel, without waiting. `length` is that of
// the whole; what there is no room for is lost, as in the kernel. Holds the receiver's lock.
long receive_message_now(Receiver& receiver, const Ring& ring, int fd, const iovec* parts,
                         std::size_t count, bool peek, Ancillary* with,
                         std::size_t& length) noexcept;
// As look_for_end().
long look_for_end_of_messages(Receiver& receiver, const Ring& ring, int fd) noexcept;

// What it means that the kernel has returned no bytes.
enum class NoBytes : std::uint8_t {
  message,
  end,
  // Messages are left. The kernel looks for them first and then for the end, so that a call which
  // does not wait is told of the end where both came in between. It is not told so again.
  early,
};
// Holds the receiver's lock.
NoBytes meaning_of_no_bytes(const Receiver& receiver, const Ring& ring, int fd) noexcept;
// Whether the peer has shut down or closed.
bool has_hung_up(int fd) noexcept;
// Whether the kernel has something to tell who reads.
bool kernel_readable(int fd) noexcept;

}  // namespace farcall::preload
