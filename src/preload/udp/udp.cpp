// SPDX-License-Identifier: Apache-2.0
//
// Which descriptors are UDP sockets, and how such a socket begins and ends.
#include "preload/udp/udp.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/udp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "preload/diag.hpp"
#include "preload/fork.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

namespace detail {
constinit std::array<std::atomic<UdpSocket*>, kMostUdpDescriptors> udp_table{};
constinit std::atomic<std::uint32_t> udp_sent_by_kernel{0};
}  // namespace detail

namespace {

constexpr std::uint32_t kPerChunk = 16;
constexpr std::uint32_t kPublishAfter = 3;  // receives

// Made when they are needed: a program that locks its memory has all of it resident.
constinit std::array<std::atomic<UdpSocket*>, kMostUdpSockets / kPerChunk> chunks{};
constinit Lock life;  // of the table and of who is in use
constinit std::atomic<std::uint32_t> flow_count{0};
constinit std::atomic<int> highest{-1};

UdpSocket* make_chunk() noexcept {
  const long made = kernel(SYS_mmap, nullptr, sizeof(UdpSocket) * kPerChunk, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made < 0 && made > -4096 ? nullptr : reinterpret_cast<UdpSocket*>(made);
}

template <class Visit>
void for_each_place(Visit visit) noexcept {
  for (auto& place : chunks) {
    UdpSocket* const chunk = place.load(std::memory_order_acquire);
    if (chunk == nullptr) return;
    for (std::uint32_t i = 0; i < kPerChunk; ++i) visit(chunk[i]);
  }
}

bool is_used(const UdpSocket& socket) noexcept {
  return socket.references.load(std::memory_order_relaxed) != 0;
}

template <class Visit>
void for_each_socket(Visit visit) noexcept {
  for_each_place([&visit](UdpSocket& socket) {
    if (is_used(socket)) visit(socket);
  });
}

// The lock of life is held.
UdpSocket* find_free() noexcept {
  std::uint32_t first = 0;
  for (auto& place : chunks) {
    UdpSocket* chunk = place.load(std::memory_order_relaxed);
    if (chunk == nullptr) {
      chunk = make_chunk();
      for (std::uint32_t i = 0; chunk != nullptr && i < kPerChunk; ++i) chunk[i].index = first + i;
      place.store(chunk, std::memory_order_release);
      return chunk;
    }
    first += kPerChunk;
    for (std::uint32_t i = 0; i < kPerChunk; ++i)
      if (chunk[i].references.load(std::memory_order_relaxed) == 0) return &chunk[i];
  }
  return nullptr;
}

void refer(int fd, UdpSocket& socket) noexcept {
  int before = highest.load(std::memory_order_relaxed);
  while (before < fd && !highest.compare_exchange_weak(before, fd, std::memory_order_relaxed)) {
  }
  // release: pairs with the acquire in find_udp()
  detail::udp_table[static_cast<std::size_t>(fd)].store(&socket, std::memory_order_release);
}

bool in_range(int fd) noexcept {
  return static_cast<unsigned>(fd) < static_cast<unsigned>(kMostUdpDescriptors);
}

// --- fork: parent and child go on with the kernel alone, for each would see half of the datagrams.

void before_fork() noexcept {
  life.lock();
  for_each_socket([](UdpSocket& socket) {
    socket.receive_lock.lock();
    socket.send_lock.lock();
    udp_give_back(socket);
  });
}

void after_fork_in_parent() noexcept {
  for_each_socket([](UdpSocket& socket) {
    socket.kernel_only.store(true, std::memory_order_relaxed);
    socket.is_shared.store(true, std::memory_order_relaxed);
    udp_watch_all(socket);
    udp_end_sending(socket, false);
    udp_close_listener(socket);
    socket.receive_lock.unlock();
    socket.send_lock.unlock();
  });
  life.unlock();
}

// What could not be given back is the parent's to read. The descriptors of the library are closed
// where all of them are.
void after_fork_in_child() noexcept {
  for_each_socket([](UdpSocket& socket) {
    socket.kernel_only.store(true, std::memory_order_relaxed);
    socket.is_shared.store(true, std::memory_order_relaxed);
    socket.each_in([](InFlow& flow) {
      udp_unmap(flow.receiver.memory());
      flow.state = InFlow::kFree;
      observe::close(std::exchange(flow.observed, nullptr));
    });
    for (std::uint32_t i = 0; i < UdpSocket::kMostFlows; ++i) {
      OutFlow& flow = socket.out[i];
      udp_note_settled(socket, i);
      if (flow.used) udp_unmap(flow.sender.memory());
      flow.used = false;
      observe::close(std::exchange(flow.observed, nullptr));
    }
    for (Target& target : socket.targets) target.state = Target::kNone;
    socket.in_end = 0;
    socket.joining.connection = socket.listener = socket.guest = -1;
    socket.sleeping = 0;
    socket.receive_lock.unlock();
    socket.send_lock.unlock();
  });
  // Who found a socket that has been closed since may hold them for another moment.
  for_each_place([](UdpSocket& socket) {
    if (is_used(socket)) return;
    socket.receive_lock.renew();
    socket.send_lock.renew();
  });
  life.unlock();
}

[[gnu::constructor]] void start() noexcept {
  at_fork({before_fork, after_fork_in_parent, after_fork_in_child});
}

// The kernel may give to that socket what others at its port received so far, so their flows end
// and it decides; before another begins it is asked who receives. What is in memory by now was sent
// before the program could know of the change, and remains to be read.
void end_flows_beside(int fd) noexcept {
  Endpoint own{};
  if (!address_of(SYS_getsockname, fd, own) || own.port == 0) return;
  const Guard guard(life);
  if (!guard) return;
  for_each_socket([&own](UdpSocket& socket) {
    if (socket.port.load(std::memory_order_acquire) != own.port) return;
    const Guard receiving(socket.receive_lock);
    if (!receiving) return;
    socket.each_in([](InFlow& flow) {
      if (flow.state == InFlow::kUsed) udp_let_end(flow);
    });
  });
}

template <class... Options>
constexpr bool is_any_of(int option, Options... options) noexcept {
  return ((option == options) || ...);
}

// These change nothing that the library does, nor what comes from a socket of this machine to its
// own address; all others might. With SO_REUSEADDR another process may take the address over at any
// time, and no sender would know before it asks the kernel again.
bool is_harmless(int level, int option) noexcept {
  switch (level) {
    case SOL_SOCKET:
      return is_any_of(option, SO_RCVBUF, SO_SNDBUF, SO_RCVBUFFORCE, SO_SNDBUFFORCE, SO_RCVTIMEO,
                       SO_SNDTIMEO, SO_PRIORITY, SO_BROADCAST, SO_RCVLOWAT, SO_KEEPALIVE,
                       SO_BUSY_POLL, SO_LINGER, SO_DONTROUTE, SO_OOBINLINE);
    case IPPROTO_IP:
      return is_any_of(option, IP_TOS, IP_TTL, IP_MTU_DISCOVER, IP_FREEBIND, IP_MULTICAST_TTL,
                       IP_MULTICAST_LOOP, IP_MULTICAST_IF, IP_MULTICAST_ALL, IP_ADD_MEMBERSHIP,
                       IP_DROP_MEMBERSHIP, IP_ADD_SOURCE_MEMBERSHIP, IP_DROP_SOURCE_MEMBERSHIP,
                       MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP);
    case IPPROTO_IPV6:
      return is_any_of(option, IPV6_V6ONLY, IPV6_UNICAST_HOPS, IPV6_TCLASS, IPV6_MTU_DISCOVER,
                       IPV6_MULTICAST_HOPS, IPV6_MULTICAST_LOOP, IPV6_MULTICAST_IF,
                       IPV6_MULTICAST_ALL, IPV6_ADD_MEMBERSHIP, IPV6_DROP_MEMBERSHIP,
                       MCAST_JOIN_GROUP, MCAST_LEAVE_GROUP);
    default: return false;
  }
}

}  // namespace

bool udp_count_flow() noexcept {
  if (flow_count.fetch_add(1, std::memory_order_relaxed) < settings().max_sockets) return true;
  udp_uncount_flow();
  return false;
}

void udp_uncount_flow() noexcept { flow_count.fetch_sub(1, std::memory_order_relaxed); }

void udp_unmap(const DatagramMemory& memory) noexcept {
  kernel(SYS_munmap, memory.control, kDatagramControlBytes + memory.size);
  udp_uncount_flow();
}

void udp_note(int fd, int domain, int type, int protocol) noexcept {
  constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;
  if (!in_range(fd) || fd <= STDERR_FILENO || (domain != AF_INET && domain != AF_INET6) ||
      (type & ~kTypeFlags) != SOCK_DGRAM || (protocol != 0 && protocol != IPPROTO_UDP))
    return;
  if (!settings().enabled || !settings().udp) return;
  const Guard guard(life);
  if (!guard) return;
  UdpSocket* const free = find_free();
  if (free == nullptr) return;
  // Only what is looked at before it is written; no flows are left from before.
  free->family = static_cast<sa_family_t>(domain);
  free->kernel_only.store(false, std::memory_order_relaxed);
  free->is_shared.store(false, std::memory_order_relaxed);
  free->stay_watched.store(false, std::memory_order_relaxed);
  free->was_connected.store(false, std::memory_order_relaxed);
  free->may_have_error.store(false, std::memory_order_relaxed);
  free->corked.store(false, std::memory_order_relaxed);
  free->kept_error.store(0, std::memory_order_relaxed);
  free->peer_known = free->own_known = free->hot = free->busy = free->flags_known = false;
  free->kernels_turn = free->waits_here = free->polls_here = false;
  free->counters = nullptr;
  if (free->last != nullptr)
    for (Target& target : free->targets) target.state = Target::kNone;
  free->last = nullptr;
  free->joining.connection = -1;
  free->in_end = free->last_in = 0;
  free->receives = free->empty_calls = free->ring_receives = free->looks = 0;
  free->sleeping = 0;
  free->kernel_receives = 0;
  free->dropped = 0;
  free->next_publish = kPublishAfter;
  free->port.store(0, std::memory_order_relaxed);
  free->listener = free->guest = -1;
  if (++free->generation == 0) ++free->generation;
  free->patience = Patience{};
  free->references.store(1, std::memory_order_relaxed);
  refer(fd, *free);
}

UdpSocket& udp_socket_at(std::uint32_t index) noexcept {
  return chunks[index / kPerChunk].load(std::memory_order_acquire)[index % kPerChunk];
}

void udp_process_leaves() noexcept {
  for_each_socket([](UdpSocket& socket) {
    const Guard guard(socket.receive_lock);
    if (!guard) return;
    if (socket.is_shared.load(std::memory_order_relaxed)) return udp_give_back(socket);
    socket.each_in([](InFlow& flow) {
      if (flow.state == InFlow::kUsed) udp_let_end(flow);
    });
  });
}

int udp_highest() noexcept { return highest.load(std::memory_order_relaxed); }

void udp_bound(UdpSocket& socket, int fd) noexcept {
  end_flows_beside(fd);
  {
    const Guard guard(socket.send_lock);
    socket.own_known = false;
  }
  Endpoint own{};
  if (!stats_wanted() || !address_of(SYS_getsockname, fd, own)) return;
  socket.counters = counters_for(Protocol::udp, own);
  if (socket.counters != nullptr)
    socket.counters->connections.fetch_add(1, std::memory_order_relaxed);
}

void udp_connected(UdpSocket& socket, int fd) noexcept {
  socket.was_connected.store(true, std::memory_order_relaxed);
  end_flows_beside(fd);
  const Guard receiving(socket.receive_lock);
  const Guard sending(socket.send_lock);
  if (!sending || !receiving) return udp_leave(socket);
  udp_end_sending(socket, true);
  socket.peer_known = socket.own_known = false;
  // What came before may still be read, as it may from the kernel.
  socket.each_in(udp_let_end);
  udp_close_listener(socket);
  socket.next_publish = socket.receives + kPublishAfter;
}

void udp_option(UdpSocket& socket, int fd, int level, int option) noexcept {
  if (is_harmless(level, option)) return;
  end_flows_beside(fd);  // as a socket that is bound to a device comes before others
  count(socket.counters, Reason::option);
  udp_leave(socket);
}

void udp_flags_changed(UdpSocket& socket) noexcept {
  const Guard guard(socket.receive_lock);
  socket.flags_known = false;
}

void udp_ioctl(UdpSocket& socket, unsigned long request, void* argument, long result) noexcept {
  switch (request) {
    case FIONBIO: return udp_flags_changed(socket);
    // What comes by memory raises no signal.
    case FIOASYNC:
    // The kernel keeps the time of the last one from the first question on, also if it has none.
    case SIOCGSTAMP_OLD:
    case SIOCGSTAMPNS_OLD:
#if defined(SIOCGSTAMP_NEW)
    case SIOCGSTAMP_NEW:
    case SIOCGSTAMPNS_NEW:
#endif
      return udp_leave(socket);
    case FIONREAD:
      if (result >= 0)
        if (const int size = udp_next_size(socket); size >= 0) *static_cast<int*>(argument) = size;
      return;
    default: return;
  }
}

void udp_duplicated(UdpSocket& socket, int copy) noexcept {
  if (!in_range(copy)) return;
  const Guard guard(life);
  if (!guard) return;
  socket.references.fetch_add(1, std::memory_order_relaxed);
  refer(copy, socket);
}

void udp_forget(int fd) noexcept {
  UdpSocket* const known = find_udp(fd);
  if (known == nullptr) return;
  // What a dead receiver has not read is sent again as long as there is somebody to send it.
  (void)udp_check_receivers(*known, fd, false);
  const Guard guard(life);
  UdpSocket* const socket = detail::udp_table[static_cast<std::size_t>(fd)].exchange(nullptr);
  // Without its locks the socket is never used again.
  if (socket == nullptr || !guard) return;
  if (socket->references.load(std::memory_order_relaxed) == 1) {
    const Guard receiving(socket->receive_lock);
    const Guard sending(socket->send_lock);
    if (!sending || !receiving) return udp_leave(*socket);
    udp_end_sending(*socket, true);
    if (socket->is_shared.load(std::memory_order_relaxed)) udp_give_back(*socket);
    socket->each_in([socket](InFlow& flow) { udp_end_in(*socket, flow); });
    udp_close_listener(*socket);
  } else {
    // Who sends what a dead receiver has not read may be about to do so by this descriptor.
    const Guard sending(socket->send_lock);
  }
  socket->references.fetch_sub(1, std::memory_order_relaxed);
}

namespace {

// From now on nothing goes into memory; what is there is passed to `unread`, with the lock held.
template <class Unread>
void use_kernel_only(UdpSocket& socket, Unread unread) noexcept {
  if (!socket.kernel_only.exchange(true)) {
    const Guard guard(socket.send_lock);
    if (guard) udp_end_sending(socket, false);
  }
  const Guard guard(socket.receive_lock);
  if (!guard) return;
  udp_close_listener(socket);
  unread(socket);
}

}  // namespace

void udp_leave(UdpSocket& socket) noexcept {
  socket.is_shared.store(true, std::memory_order_relaxed);
  // What cannot be given back may still be read here; nothing follows it.
  use_kernel_only(socket, udp_give_back);
}

void udp_shut_down(UdpSocket& socket) noexcept {
  use_kernel_only(socket, [](UdpSocket& shut) noexcept { shut.each_in(udp_let_end); });
}

}  // namespace farcall::preload
