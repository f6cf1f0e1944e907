// SPDX-License-Identifier: Apache-2.0
//
// UDP sockets of this process, and the flows of datagrams that they share memory with.
//
// A flow is what one socket sends to one other. Its receiver, once it has been used a few times,
// can be found under an abstract name made from the address it is bound to; a sender that goes on
// sending to that address makes the memory of the flow and leaves it there (udp_join.cpp). The
// receiver takes it when it next looks, and until it says so by clearing WATCHED, the sender sends
// all through the kernel. So nobody waits for anybody, and a peer without the library is a plain
// peer.
//
// Sockets are private to a process: when it forks, those that it has go on without the library.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "preload/datagram_ring.hpp"
#include "preload/lock.hpp"
#include "preload/stats.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

// What this socket sends to one address.
struct OutFlow {
  enum State : std::uint8_t { kCandidate, kJoined, kNever };
  Endpoint to;
  Endpoint from;  // as the receiver sees it; known when joined
  State state;
  std::uint32_t sends;
  std::uint32_t next_try;
  DatagramSender sender;
  std::uint64_t receiver_cookie;
  std::uint64_t checked_at;  // ticks
  Counters* counters;
};

// What one address sends to this socket.
struct InFlow {
  bool used;
  bool began;  // the kernel's queue has been seen empty since it was taken
  bool counted;
  Endpoint from;
  Endpoint to;
  DatagramReceiver receiver;
  std::uint64_t sender_cookie;
  Counters* counters;
};

struct UdpSocket {
  static constexpr std::size_t kMostFlows = 32;  // each way

  std::atomic<int> references;  // descriptors of this process; 0: not in use
  std::uint32_t generation;     // another one each time it comes into use
  sa_family_t family;
  std::atomic<bool> kernel_only;   // for good
  std::atomic<bool> stay_watched;  // waited for in ways that only the kernel serves
  bool bound;                      // by the program, to an address that others know
  Counters* counters;              // if it is bound; else each flow has its own

  // --- sending, under its lock
  Lock send_lock;
  bool peer_known;
  Endpoint peer;  // connected to; port 0 if it is not
  std::size_t out_count;
  std::size_t last_out;
  std::array<OutFlow, kMostFlows> out;

  // --- receiving, under its lock
  Lock receive_lock;
  std::uint32_t receives;
  std::uint32_t next_publish;
  int listener;          // -1: none
  std::uint32_t parked;  // threads that sleep in the kernel on account of it
  std::uint32_t empty_calls;
  std::uint64_t looked_at;  // ticks
  std::uint32_t looks;
  std::uint32_t ring_receives;  // since the kernel was last looked at
  bool hot;                     // the last datagram came from a flow
  bool busy;                    // the program waits by calling again and again
  bool flags_known;
  bool nonblocking;  // O_NONBLOCK, if that is known
  Patience patience;
  std::size_t in_count;  // in[] is dense
  std::size_t last_in;
  std::array<InFlow, kMostFlows> in;
};

inline constexpr int kMostUdpDescriptors = 1 << 20;
namespace detail {
extern std::array<std::atomic<UdpSocket*>, kMostUdpDescriptors> udp_table;
}

// The UDP socket that a descriptor refers to, or null.
inline UdpSocket* find_udp(int fd) noexcept {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMostUdpDescriptors)) return nullptr;
  // acquire: pairs with the release in udp_note()
  return detail::udp_table[static_cast<std::size_t>(fd)].load(std::memory_order_acquire);
}

// socket() has returned `fd`; does nothing unless that is a UDP socket.
void udp_note(int fd, int domain, int type, int protocol) noexcept;
// bind() or connect() has succeeded: what is known of addresses is no longer true.
void udp_bound(UdpSocket& socket, int fd) noexcept;
void udp_connected(UdpSocket& socket, int fd) noexcept;
// setsockopt() has succeeded.
void udp_option(UdpSocket& socket, int fd, int level, int option) noexcept;
// O_NONBLOCK may have been set or cleared.
void udp_flags_changed(UdpSocket& socket) noexcept;
// `copy` refers to the same socket as `fd`.
void udp_duplicated(UdpSocket& socket, int copy) noexcept;
// `fd` is about to be closed, or to become something else.
void udp_forget(int fd) noexcept;
// From now on only the kernel: before exec, when it is passed, used by what the library cannot see.
void udp_leave(UdpSocket& socket) noexcept;

// No descriptor above it is in the table.
int udp_highest() noexcept;

// As sendmsg() and recvmsg(): errno is set.
ssize_t udp_send(UdpSocket& socket, int fd, const msghdr& message, int flags) noexcept;
ssize_t udp_receive(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept;

// From now on all comes through the kernel, until the program has received something. True if a
// datagram is in memory.
bool udp_watch(UdpSocket& socket, int fd) noexcept;
// The same for good: waited for in ways that only the kernel serves.
bool udp_watch_for_good(UdpSocket& socket, int fd) noexcept;
// Around a sleep in the kernel: udp_watch(), and it stays so.
struct UdpTicket {
  std::uint32_t generation;  // 0: it has not been entered
  bool was_awake;
};
bool udp_enter_kernel(UdpSocket& socket, int fd, UdpTicket& ticket) noexcept;
void udp_leave_kernel(UdpSocket& socket, int fd, const UdpTicket& ticket) noexcept;
// Whether datagrams come through memory now, so that it is worth to stay awake for them.
bool udp_awake(const UdpSocket& socket) noexcept;
// What changes with every datagram that comes through memory; kNoDatagram if there is none to be
// read, or if somebody is just reading.
inline constexpr std::uint64_t kNoDatagram = ~std::uint64_t{0};
std::uint64_t udp_position(UdpSocket& socket) noexcept;
// Who waits for it runs on `here`; where its senders last ran.
void udp_note_processor(UdpSocket& socket, std::uint32_t here) noexcept;
std::uint32_t udp_senders_processor(UdpSocket& socket) noexcept;
// Whether a datagram is in memory; if there is one that comes before it, the kernel has that.
bool udp_readable(UdpSocket& socket) noexcept;
// The size of the datagram that is next if it is in memory, else -1.
int udp_next_size(UdpSocket& socket) noexcept;

// --- between udp.cpp and udp_join.cpp

// Makes the socket findable, takes flows that were left; the receive lock is held.
void udp_publish(UdpSocket& socket, int fd) noexcept;
void udp_take_flows(UdpSocket& socket, int fd) noexcept;
// Tries to make `flow` joined; the send lock is held.
void udp_try_join(UdpSocket& socket, int fd, OutFlow& flow) noexcept;
// Whether the socket that `flow` was joined to is still the one that gets its datagrams.
bool udp_still_there(const OutFlow& flow) noexcept;
void udp_drop_in(UdpSocket& socket, std::size_t index) noexcept;
bool udp_own_address(int fd, Endpoint& endpoint) noexcept;
bool udp_is_local(const Endpoint& endpoint) noexcept;
inline bool is_wildcard(const Endpoint& endpoint) noexcept {
  for (std::size_t i = 0; i < 16; ++i)
    if (endpoint.address[i] != 0 && !((i == 10 || i == 11) && endpoint.address[i] == 0xff))
      return false;
  return true;
}

}  // namespace farcall::preload
