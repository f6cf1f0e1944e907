// SPDX-License-Identifier: Apache-2.0
//
// What the calls that wait (poll, select, epoll) ask of a descriptor, be it of a TCP or of a UDP
// socket.
#pragma once

#include <cstdint>

#include "preload/connection.hpp"
#include "preload/udp/udp.hpp"

namespace farcall::preload {

inline bool is_ours(int fd) noexcept { return find_side(fd) != nullptr || find_udp(fd) != nullptr; }

// From here on the kernel tells of it. True if there is something to read in memory, of which the
// kernel does not know.
inline bool watch(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr && udp_watch(*udp, fd);
  }
  const Guard guard(side->receive_lock);
  if (!guard || side->in().control == nullptr) return false;
  if (!side->receiver.watched()) side->receiver.watch(side->in());
  return side->receiver.next(side->in()).kind == Receiver::Next::ring;
}

// For good: waited for in ways that only the kernel serves.
inline void leave_socket_to_kernel(int fd) noexcept {
  if (Side* const side = find_side(fd)) side->stay_watched.store(true, std::memory_order_relaxed);
  if (UdpSocket* const udp = find_udp(fd)) udp->stay_watched.store(true, std::memory_order_relaxed);
  watch(fd);
}

// Whether there is something to read in memory.
inline bool readable_now(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side != nullptr) return side->accelerated() && ring_readable(*side);
  UdpSocket* const udp = find_udp(fd);
  return udp != nullptr && udp_readable(*udp);
}

// Of a datagram socket.
inline bool has_error_kept(int fd) noexcept {
  const UdpSocket* const udp = find_udp(fd);
  return udp != nullptr && udp->kept_error.load(std::memory_order_relaxed) != 0;
}

// One end has shut down or closed, so the kernel has more to tell than that there are bytes.
inline bool has_ended(int fd) noexcept {
  const Side* const side = find_side(fd);
  // A datagram socket that is shut down is the kernel's.
  if (side == nullptr) {
    const UdpSocket* const udp = find_udp(fd);
    return udp != nullptr &&
           (udp->kernel_only.load(std::memory_order_relaxed) ||
            udp->may_have_error.load(std::memory_order_relaxed) || has_error_kept(fd));
  }
  const Direction* const in = side->in().control;
  return in != nullptr && (in->sender_said.load(std::memory_order_relaxed) != 0 ||
                           in->receiver_finished.load(std::memory_order_relaxed) != 0 ||
                           side->finished.load(std::memory_order_relaxed));
}

// The connection has been reset, which the kernel does not know, or has told the library.
inline bool knows_of_reset(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr || side->in().control == nullptr) return false;
  if (side->error_kept.load(std::memory_order_relaxed) != 0) return true;
  if (!peer_is_gone(*side, fd)) return false;
  const Guard receiving(side->receive_lock);
  return receiving && is_reset(*side, fd);
}

// How far the connection has come, if there is something to read in memory, else kNothingToRead; a
// look without the lock, at whatever the side is now. Bytes of the kernel count when they are
// taken: they may have come after a program counted what there is and stopped reading at that
// number, and once they are gone the kernel tells of them no more.
inline constexpr std::uint64_t kNothingToRead = kNoDatagram;
inline std::uint64_t read_position(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr ? udp_position(*udp) : kNothingToRead;
  }
  Direction* const control = side->in().control;
  if (control == nullptr) return kNothingToRead;
  // The tail first: a sender that moves both on moves the head before it. What it takes back the
  // kernel tells of.
  const std::uint64_t tail = control->tail.load(std::memory_order_acquire) & ~kFlags;
  const std::uint64_t head = control->head.load(std::memory_order_acquire);
  return head >= tail ? kNothingToRead : tail + side->receiver.kernel_taken();
}

// Who waits for it runs on `here`. Senders of datagrams do not ask.
inline void note_processor(int fd, std::uint32_t here) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) return;
  Direction* const in = side->in().control;
  Direction* const out = side->out().control;
  if (in != nullptr && in->receiver_processor.load(std::memory_order_relaxed) != here)
    in->receiver_processor.store(here, std::memory_order_relaxed);
  if (out != nullptr && out->sender_processor.load(std::memory_order_relaxed) != here)
    out->sender_processor.store(here, std::memory_order_relaxed);
}

// Where the peer last ran, plus one; 0 if that is not known.
inline std::uint32_t peer_processor(int fd) noexcept {
  Side* const side = find_side(fd);
  if (side == nullptr) {
    UdpSocket* const udp = find_udp(fd);
    return udp != nullptr ? udp_senders_processor(*udp) : 0;
  }
  Direction* const in = side->in().control;
  return in != nullptr ? in->sender_processor.load(std::memory_order_relaxed) : 0;
}

}  // namespace farcall::preload
