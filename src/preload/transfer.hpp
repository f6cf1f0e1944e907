// SPDX-License-Identifier: Apache-2.0
//
// Moves bytes between a program and one direction, be they in the ring or in the kernel, without
// ever waiting.
#pragma once

#include <sys/socket.h>

#include "preload/address.hpp"
#include "preload/stream.hpp"

namespace farcall::preload {

// What came of a try: bytes (0: the end of the stream), a negative errno, or:
inline constexpr long kNothing = -100'000;

// What the kernel passes with bytes of a unix socket: descriptors. A call returns no bytes behind
// those that they came with.
struct Ancillary {
  void* control = nullptr;  // the program's memory for them
  std::size_t room = 0;
  int wanted = 0;           // MSG_CMSG_CLOEXEC
  std::size_t size = 0;     // how much of it is filled
  int told = 0;             // msg_flags
  bool came = false;        // also where there was no memory for them
  bool is_message = false;  // one has come: no bytes are not the end (packet.hpp)
  bool is_told = false;     // the program asks for them, or whether there were any
  bool in_vain = false;     // the program's own call was made, and brought nothing of its own

  void ask(msghdr& message) const noexcept {
    message.msg_control = control;
    message.msg_controllen = room;
  }
  void answered(const msghdr& message) noexcept {
    size = message.msg_controllen;
    told = message.msg_flags;
    came = size != 0 || (told & MSG_CTRUNC) != 0;
  }
};

// Takes what is there, across ring and kernel, up to to.left(). Holds the receiver's lock.
// `with` is null where nothing comes with bytes.
long receive_now(Receiver& receiver, const Ring& ring, int fd, Span& to, bool peek,
                 Ancillary* with) noexcept;

// Has the stream ended, or has it an error? As receive_now, for when that found nothing: asks the
// kernel, which costs a system call.
long look_for_end(Receiver& receiver, const Ring& ring, int fd) noexcept;
// What that is made of, for messages as well. What the kernel shows at the end: how many bytes, an
// error, or kNothing.
long peek_at_end(Receiver& receiver, const Ring& ring, int fd) noexcept;
// There are some for which there is no mark: they went past the peer's library. Nothing is in front
// of them. kNothing.
long note_unmarked(Receiver& receiver, const Ring& ring) noexcept;

// Where the doorbell stands among the next `count` bytes of the kernel; `count`: it does not.
std::size_t doorbell_among(const Receiver& receiver, const Ring& ring, std::size_t count) noexcept;

// Takes a doorbell out of `got` bytes that have just come from the kernel into `parts`, if it is
// among them. Returns how many bytes are the program's.
std::size_t without_doorbell(const Receiver& receiver, const Ring& ring, const iovec* parts,
                             std::size_t count, std::size_t got) noexcept;

// Sends what nobody has taken out of the ring through the kernel, as much as that takes without
// waiting; see Sender::reclaim. Holds the sender's lock. Zero, or a negative errno; the kernel
// tells again of EPIPE only. `messages`: what lies in the ring are messages (packet.hpp).
long reclaim_now(Sender& sender, const Ring& ring, int fd, bool always, bool messages) noexcept;

// sendmsg of at most `size` bytes of what is left in `span`, without waiting; negative errno.
long kernel_send(int fd, const Span& span, std::size_t size, int flags) noexcept;

// The most that SO_SNDBUF can be set to without privileges, as the kernel tells it; 0 where it does
// not.
std::size_t most_send_room() noexcept;
// The same of `fd`, of which it may be more already: so much RoomForAll has the kernel take at
// least.
std::size_t send_room_of(int fd) noexcept;

// While this lives the kernel takes `bytes` more of a socket than it usually does: what one end has
// not read and gives back, of the ring and of the kernel together. Afterwards the socket is as it
// was, to the program too. No bytes: nothing is done.
class RoomForAll {
 public:
  RoomForAll(int fd, std::size_t bytes) noexcept;
  RoomForAll(const RoomForAll&) = delete;
  RoomForAll& operator=(const RoomForAll&) = delete;
  ~RoomForAll();

 private:
  int fd_;
  int before_ = 0;
  bool unlocks_ = false;  // the kernel chose the room by itself
};

// Bytes in the kernel's receive queue of `fd`; negative errno.
long kernel_queued(int fd) noexcept;

// So many at a time, as threads may have little stacks; a call goes on behind them. What is looked
// at (MSG_PEEK) comes with as many as the program has, up to kMostParts.
inline constexpr std::size_t kParts = 32;

}  // namespace farcall::preload
