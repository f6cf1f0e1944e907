// SPDX-License-Identifier: Apache-2.0
//
// send() and recv() as a program means them, on a connection that may be accelerated: waiting,
// timeouts, signals and flags as the kernel has them. What the hooks of the send and receive
// families have in common.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include "preload/side.hpp"
#include "preload/transfer.hpp"

namespace farcall::preload {

// How much of what the kernel counts, see packet.hpp, a sending call has sent.
inline std::size_t units_sent(const Side& side, ssize_t result) noexcept {
  if (side.has_messages()) return result >= 0 ? 1 : 0;
  return result > 0 ? static_cast<std::size_t>(result) : 0;
}

inline std::size_t message_bytes(const Side& side, ssize_t result) noexcept {
  return side.has_messages() && result > 0 ? static_cast<std::size_t>(result) : 0;
}

// What the program called: where its bytes are, and the call itself, to be made by the C library.
struct Call {
  int fd;
  const iovec* parts;
  std::size_t count;
  int flags;
  // The program's own call, as it was made; errno as the C library sets it.
  ssize_t (*libc_call)(const void* arguments);
  const void* arguments;
  Ancillary* with = nullptr;  // of a receiving call on a unix socket
  bool is_rest = false;       // of a call of several messages, some of which have been moved
  // How long it has slept, in ns: SO_RCVTIMEO and SO_SNDTIMEO are of all sleep of a call, but of
  // one that sends to a unix stream only of what it has slept since the kernel last took bytes.
  mutable std::int64_t slept = 0;
};

// kThrowsAway: nothing is done, for the bytes of an accelerated stream are to be thrown away.
inline constexpr ssize_t kThrowsAway = -100'004;
ssize_t receive_from(Side& side, const Call& call) noexcept(false);
ssize_t send_to(Side& side, const Call& call) noexcept(false);

// Goes over to the kernel for a call that only the kernel can do. What comes afterwards may use the
// ring again at once; when all this has been taken, for descriptors are among it; or never.
enum class Afterwards : std::uint8_t { ring, ring_when_taken, kernel };
ssize_t send_by_kernel(Side& side, const Call& call, Afterwards afterwards) noexcept(false);

// The same for a receiving call, when the ring is empty.
ssize_t splice_from_kernel(Side& side, const Call& call) noexcept(false);

// May the receiving direction leave the kernel? Some of those who wait are served by it alone.
// Called with the receiver's lock. Also notes it with the epoll set that the descriptor is in.
void wake_up(Side& side, int fd) noexcept;

// TCP_NODELAY, which the library has set, in the kernel as the program wants it.
void set_nodelay_as_wanted(const Side& side, int fd) noexcept;

// How much the kernel takes of messages, and of a stream in all; SO_SNDBUF may have changed. Holds
// the sender's lock.
void note_room(Side& side, int fd) noexcept;
// The program has set or cleared O_NONBLOCK.
void set_nonblocking(Side& side, bool on) noexcept;
// The kernel tells of the end of a connection once. Where it told a call that returns bytes
// instead, or one of the library's own, the program's next call tells it.
void keep_error(Side& side, int error) noexcept;
bool is_of_connection(int error) noexcept;  // not of the call
int take_error(Side& side) noexcept;
// A broken pipe is told to who asks for errors or readiness, not to who receives; to who sends the
// kernel tells it each time, with its signal.
int take_error_to_receive(Side& side) noexcept;
int take_error_to_send(Side& side) noexcept;
// The kernel has told this library of a broken pipe, when bytes were taken back: where that comes
// of a reset, the program is still to be told.
void keep_broken_pipe(Side& side, int fd) noexcept;
// What SO_ERROR would say without the library; no other call tells of it then.
int take_pending_error(Side& side, int fd) noexcept;
// Whether the kernel would have reset the connection, of which nobody has been told yet; the peer
// has closed it. Holds the receiver's lock.
bool is_reset(Side& side, int fd) noexcept;
// The same, with the sender's lock held instead.
bool is_reset_to_sender(Side& side, int fd) noexcept;
// What the program is told of an error of the kernel. It says EPIPE where anything, if only a
// doorbell, was sent to a peer that had died with bytes unread.
int told_by_kernel(Side& side, int fd, int error) noexcept;
// The program is about to be told.
void reset_is_told(Side& side, int fd) noexcept;
bool peer_has_closed(const Side& side) noexcept;
// The same, also of one that was killed or has left by _exit(2), which the kernel tells of.
bool peer_is_gone(const Side& side, int fd) noexcept;

// reclaim_now(), with the error of the connection kept. False: what is left in the ring can never
// be sent. Holds the sender's lock.
bool reclaim(Side& side, int fd, bool always) noexcept;

// Whether there is something to read in the ring; what is in the kernel poll() tells.
bool ring_readable(Side& side) noexcept;

}  // namespace farcall::preload
