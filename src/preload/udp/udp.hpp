// SPDX-License-Identifier: Apache-2.0
//
// UDP sockets of this process, and the flows of datagrams that they share memory with.
//
// A flow is what one socket sends to one other. Its receiver, once it has been used a few times,
// can be found under an abstract name made from the address it is bound to; a sender that goes on
// sending to that address comes there, and when each has proved to the other that it holds the
// socket it speaks for, they share the memory of the flow (meet.hpp). Until the receiver says
// so by clearing WATCHED, the sender sends all through the kernel. A peer without the library is a
// plain peer.
//
// A program may wait in ways that the library does not see. So a flow is unwatched between calls
// only where the last wait was the library's own: a call that found nothing and waited, poll() or
// select(), or an epoll set that is waited for through the library. After EAGAIN it is watched
// unless the program waits with one of the latter.
//
// Sending and receiving have a lock each; who needs both takes that of receiving first. Where it is
// refused (a fault in the middle of a call is being handled) the kernel does it.
//
// Sockets are private to a process: when it forks, those that it has go on without the library.
//
//   udp.cpp        the table, and a socket's life
//   send.cpp       sending; settle.cpp: to receivers that have died
//   receive.cpp    receiving; take.cpp: one datagram, without waiting
//   watch.cpp      waiting by poll, select and epoll
//   give_back.cpp  what lies in memory when the kernel has to have it
//   meet.hpp       how sender (join.cpp) and receiver (publish.cpp) meet
//   ../proof.hpp   whom they believe
//   address.cpp    which addresses are whose
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "preload/datagram_ring.hpp"
#include "preload/lock.hpp"
#include "preload/stats.hpp"
#include "preload/waiting.hpp"

namespace farcall::preload {

// What this socket sends to one address, in memory.
struct Target;
struct OutFlow {
  bool used;
  Target* target;
  Endpoint from;  // as the receiver sees it
  DatagramSender sender;
  std::uint64_t receiver_cookie;
  std::uint64_t checked_at;  // ticks
  observe::Counters* observed;
};

// An address that this socket has sent to. What is not known to be worth it stays with the kernel.
struct Target {
  enum State : std::uint8_t { kNone, kKernel, kCandidate, kJoining, kJoined };
  Endpoint to;
  State state;
  std::uint8_t flow;  // of out[], once it is joined, or the receiver has been asked
  std::uint32_t sends;
  std::uint32_t next_try;
  Counters* counters;
};

// The target that is being joined, one at a time. The other end may be any program.
struct Joining {
  int connection;  // -1: none
  bool asked;      // and shown our socket
  bool same_process;
  std::uint16_t looks;
  Target* target;
  Endpoint from;
  std::uint64_t receiver_cookie;
};

// What one address sends to this socket.
struct InFlow {
  // kEnding: what is there may be read, nothing follows.
  enum State : std::uint8_t { kFree, kUsed, kEnding };
  State state;
  bool began;               // the kernel's queue has been seen empty since it was taken
  bool received_by_kernel;  // one of its datagrams, since: no packet filter is against it
  bool counted;
  bool has_lost;      // the kernel may have dropped some since it was last found empty
  bool owed_in_vain;  // what its sender said to be in the kernel was waited for, and did not come
  Endpoint from;
  Endpoint to;
  DatagramReceiver receiver;
  std::uint64_t sender_cookie;
  pid_t sender_pid;  // who came, and what its socket was called there
  int sender_fd;
  std::uint64_t kernel_sent;  // before the kernel was last looked at
  bool counts_all;            // that was all that the kernel had been given
  std::uint64_t lost_at;      // when so many came by the kernel, what it owes is lost; 0: not known
  // How many more have come by the kernel than its sender counts, at least; since when, in ticks.
  std::uint64_t uncounted;
  std::uint64_t uncounted_since;  // 0: there were none when the kernel was last empty
  Counters* counters;
  observe::Counters* observed;
};

struct UdpSocket {
  static constexpr std::size_t kMostFlows = 32;  // each way
  static constexpr std::size_t kTargets = 256;   // a power of two

  std::atomic<int> references;  // descriptors of this process; 0: not in use
  std::uint32_t generation;     // another one each time it comes into use
  sa_family_t family;
  std::atomic<bool> kernel_only;     // for good
  std::atomic<bool> is_shared;       // others may have it, who read from the kernel only
  std::atomic<int> kept_error;       // came in the middle of a call, and is the next one's; 0: none
  std::atomic<bool> stay_watched;    // waited for in ways that only the kernel serves
  std::atomic<bool> was_connected;   // only then the kernel tells that nobody is there
  std::atomic<bool> may_have_error;  // something went through the kernel since it was asked
  std::atomic<std::uint16_t> port;   // where it was findable last, 0: it never was
  std::uint32_t index;               // among all sockets
  Counters* counters;                // if it is bound; else each flow has its own

  // --- sending, under its lock
  Lock send_lock;
  std::atomic<bool> corked;  // the kernel has the beginning of a datagram (MSG_MORE)
  bool peer_known;
  bool own_known;
  Endpoint peer;  // connected to; port 0 if it is not
  Endpoint own;
  Target* last;
  Joining joining;
  std::array<Target, kTargets> targets;
  std::array<OutFlow, kMostFlows> out;
  // One bit for each of these that has been sent to by memory since it was looked at whether its
  // receiver is there (settle.cpp); since when there are any, in ticks; and by what descriptor.
  std::atomic<std::uint32_t> unsettled;
  std::atomic<std::uint64_t> unsettled_since;
  int sent_by;

  // --- receiving, under its lock
  Lock receive_lock;
  std::uint32_t receives;
  std::uint32_t next_publish;
  int listener;  // -1: none
  int guest;     // who has come and not shown its socket yet; -1: none
  std::uint32_t guest_looks;
  std::uint32_t sleeping;  // threads of this process, in the kernel on account of it
  std::uint32_t empty_calls;
  std::uint64_t
      looked_at;  // ticks: just before the kernel was last found empty; 0: it was not, since
  std::uint32_t sent_before_look;  // see udp_sent_by_kernel
  std::uint32_t looks;
  std::uint32_t ring_receives;    // since the kernel was last looked at
  std::uint64_t kernel_receives;  // by the kernel, all in all
  bool kernels_turn;              // it has something: nothing more is put into memory until it came
  bool hot;                       // the last datagram came from a flow
  bool busy;                      // the program waits by calling again and again
  bool waits_here;                // its last wait was the library's
  bool polls_here;                // and it was poll() or select()
  bool flags_known;
  bool nonblocking;       // O_NONBLOCK, if that is known
  std::uint32_t dropped;  // by the kernel, when that was last asked
  Patience patience;
  std::size_t in_end;  // behind the last of in[] that is not free
  std::size_t last_in;
  std::uint64_t ended_at;  // sum of how far the flows had come that have ended
  std::array<InFlow, kMostFlows> in;

  // For the flows in use, of which any may end meanwhile.
  template <class Visit>
  void each_in(Visit visit) noexcept {
    for (std::size_t i = 0; i < in_end; ++i)
      if (in[i].state != InFlow::kFree) visit(in[i]);
  }
  template <class Test>
  [[nodiscard]] bool any_in(Test test) const noexcept {
    for (std::size_t i = 0; i < in_end; ++i)
      if (in[i].state != InFlow::kFree && test(in[i])) return true;
    return false;
  }
  [[nodiscard]] bool may_use_memory() const noexcept {
    return !stay_watched.load(std::memory_order_relaxed) &&
           !kernel_only.load(std::memory_order_relaxed);
  }
};

inline constexpr std::uint32_t kMostUdpSockets = 4096;
inline constexpr int kMostUdpDescriptors = 1 << 20;
namespace detail {
extern std::array<std::atomic<UdpSocket*>, kMostUdpDescriptors> udp_table;
// How many datagrams this process has sent through the kernel: they are there when the call is
// over.
extern std::atomic<std::uint32_t> udp_sent_by_kernel;
}  // namespace detail

// The UDP socket that a descriptor refers to, or null.
inline UdpSocket* find_udp(int fd) noexcept {
  if (static_cast<unsigned>(fd) >= static_cast<unsigned>(kMostUdpDescriptors)) return nullptr;
  // acquire: pairs with the release in udp_note()
  return detail::udp_table[static_cast<std::size_t>(fd)].load(std::memory_order_acquire);
}

// socket() has returned `fd`; does nothing unless that is a UDP socket.
void udp_note(int fd, int domain, int type, int protocol) noexcept;
// bind() or connect() has succeeded: what is known of addresses is no longer true, nor who receives
// what is sent to that port.
void udp_bound(UdpSocket& socket, int fd) noexcept;
void udp_connected(UdpSocket& socket, int fd) noexcept;
// Before setsockopt().
void udp_option(UdpSocket& socket, int fd, int level, int option) noexcept;
// O_NONBLOCK may have been set or cleared.
void udp_flags_changed(UdpSocket& socket) noexcept;
// The kernel has done an ioctl().
void udp_ioctl(UdpSocket& socket, unsigned long request, void* argument, long result) noexcept;
// `copy` refers to the same socket as `fd`.
void udp_duplicated(UdpSocket& socket, int copy) noexcept;
// `fd` is about to be closed, or to become something else.
void udp_forget(int fd) noexcept;
// From now on only the kernel: before exec, when it is passed, used by what the library cannot see.
void udp_leave(UdpSocket& socket) noexcept;
// Before shutdown(): the same, but what is unread is read here, in the order in which it was sent.
void udp_shut_down(UdpSocket& socket) noexcept;

// This process ends, or executes another program: nobody reads here any more. If that fails, new
// flows may begin.
void udp_process_leaves() noexcept;

// One of those that have been in use.
UdpSocket& udp_socket_at(std::uint32_t index) noexcept;
// No descriptor above it is in the table.
int udp_highest() noexcept;

// As sendmsg() and recvmsg(): errno is set.
ssize_t udp_send(UdpSocket& socket, int fd, const msghdr& message, int flags) noexcept;
ssize_t udp_receive(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept;

// The kernel may say of what it is given that nobody is there.
inline void udp_note_sent_by_kernel(UdpSocket& socket) noexcept {
  if (socket.was_connected.load(std::memory_order_relaxed))
    socket.may_have_error.store(true, std::memory_order_relaxed);
}

// An error that ended a call which had something to tell already: told once, as the kernel does.
inline void udp_keep_error(UdpSocket& socket, int error) noexcept {
  // Those of the call, or of its descriptor, are not the socket's.
  if (error != EAGAIN && error != EINTR && error != EBADF && error != ENOTSOCK)
    socket.kept_error.store(error, std::memory_order_relaxed);
}
inline int udp_take_kept_error(UdpSocket& socket) noexcept {
  if (socket.kept_error.load(std::memory_order_relaxed) == 0) [[likely]]
    return 0;
  return socket.kept_error.exchange(0, std::memory_order_relaxed);
}

// From now on all comes through the kernel, until the program has received something. True if a
// datagram is in memory.
bool udp_watch(UdpSocket& socket, int fd) noexcept;
// It has come into an epoll set: false if there is nothing to watch, or the set looks at it itself
// from now on.
bool udp_needs_watch(UdpSocket& socket, int fd) noexcept;
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
bool udp_awake(UdpSocket& socket) noexcept;
// What changes with every datagram that comes through memory; kNoDatagram if there is none to be
// read, or if somebody is just reading.
inline constexpr std::uint64_t kNoDatagram = ~std::uint64_t{0};
std::uint64_t udp_position(UdpSocket& socket) noexcept;
// False if none is; true also where that cannot be told, as another thread holds the lock.
bool udp_may_be_ready(UdpSocket& socket) noexcept;
// Where its last sender last ran, plus one; 0 if that is not known.
std::uint32_t udp_senders_processor(UdpSocket& socket) noexcept;
// Whether a datagram is in memory; if there is one that comes before it, the kernel has that. Or an
// error is kept.
bool udp_readable(UdpSocket& socket) noexcept;
// The size of the datagram that is next if it is in memory, else -1.
int udp_next_size(UdpSocket& socket) noexcept;

// --- between the files of UDP; the lock of the half is held, unless it is said otherwise

// As many flows as the settings allow connections, in this process.
bool udp_count_flow() noexcept;
void udp_uncount_flow() noexcept;
// Of one that is counted.
void udp_unmap(const DatagramMemory& memory) noexcept;

// The flow of a target, joined or about to be; `again`: there may be a new one.
void udp_end_out(UdpSocket& socket, Target& target, bool again) noexcept;
// No flow is used for sending any more; `again`: there may be new ones.
void udp_end_sending(UdpSocket& socket, bool again) noexcept;
// How long a flow is sent to, or waited beside, without a look whether its receiver is there.
inline constexpr std::uint64_t kUdpCheckTicks = 10'000 * kTicksPerMicrosecond;
// Is the receiver still the one who gets what goes there? A closed one has lost what it did not
// read, as it would have in the kernel, and one that lives still reads it. What a dead one has not
// read goes through the kernel after all, which says what it says of a port without a socket.
void udp_check_receiver(UdpSocket& socket, int fd, Target& target) noexcept;
// Something has been put into the memory of that flow, and before it nothing that has not been
// looked at; or nothing has to be looked at any more.
void udp_note_unsettled(UdpSocket& socket, int fd, std::uint32_t flow, std::uint64_t now) noexcept;
void udp_note_settled(UdpSocket& socket, std::uint32_t flow) noexcept;
// Before a thread sleeps: checks the receivers of what has been put into memory, if they have not
// read it. `may_wait`: it gives them a moment to do so. Takes the lock.
Interruption udp_check_receivers(UdpSocket& socket, int fd, bool may_wait) noexcept;
// The same in calls that do not wait, when it was put there long enough ago.
void udp_check_at_times(UdpSocket& socket, int fd) noexcept;
void udp_give_up_joining(UdpSocket& socket) noexcept;
// One step towards memory shared with who receives what goes to `target`.
void udp_join(UdpSocket& socket, int fd, Target& target) noexcept;
// After the datagram that follows the proof. Takes the lock.
void udp_await_joined(UdpSocket& socket, int fd) noexcept;

void udp_watch_all(UdpSocket& socket) noexcept;
// Unless somebody waits, or may wait, where only the kernel tells.
void udp_unwatch_all(UdpSocket& socket, int fd) noexcept;
bool udp_looks_ready(const UdpSocket& socket) noexcept;
std::uint32_t udp_last_senders_processor(const UdpSocket& socket) noexcept;
// What is in memory goes through the kernel after all, behind what that has: in another order where
// that was sent later, but whoever has the socket then can read all of it.
void udp_give_back(UdpSocket& socket) noexcept;
// Nothing more comes from this sender.
void udp_end_in(UdpSocket& socket, InFlow& flow) noexcept;
// The same, unless something has been added since it was looked at.
void udp_end_if_read(UdpSocket& socket, InFlow& flow) noexcept;
// Nor is anything put into its memory; what is there is still read.
void udp_let_end(InFlow& flow) noexcept;

// Makes the socket findable, and sees who has come.
void udp_publish(UdpSocket& socket, int fd) noexcept;
void udp_take_flows(UdpSocket& socket, int fd) noexcept;
// The latter before a wait, not always: each look costs a system call.
void udp_look_at_door(UdpSocket& socket, int fd) noexcept;
void udp_close_listener(UdpSocket& socket) noexcept;
// Whether the socket that a flow was joined to is still the one that gets its datagrams: an error
// that says nothing counts as yes. And whether it still exists.
bool udp_still_there(const OutFlow& flow) noexcept;
bool udp_receiver_lives(const OutFlow& flow) noexcept;
// Where this socket's datagrams to `to` come from.
bool udp_source_of(int fd, const Endpoint& to, Endpoint& from) noexcept;
// As the kernel takes it; returns its size.
socklen_t udp_to_name(const Endpoint& endpoint, bool v4, sockaddr_in6& name) noexcept;
// Writes the address as the kernel would for a socket of this family.
void udp_tell_name(sa_family_t family, const Endpoint& from, msghdr& message) noexcept;
inline constexpr std::array<std::uint8_t, 12> kMappedV4 = {0, 0, 0, 0, 0,    0,
                                                           0, 0, 0, 0, 0xff, 0xff};
bool udp_is_v4(const Endpoint& endpoint) noexcept;
// Of this machine, and no group; asks the kernel only for addresses that are new. Needs no lock.
bool udp_is_local(const Endpoint& endpoint) noexcept;
inline bool is_wildcard(const Endpoint& endpoint) noexcept {
  std::uint32_t words[4];
  std::memcpy(words, endpoint.address.data(), sizeof words);
  return words[3] == 0 && (words[2] == 0 || words[2] == htonl(0xffff)) &&
         (words[0] | words[1]) == 0;
}

}  // namespace farcall::preload
