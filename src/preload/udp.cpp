// SPDX-License-Identifier: Apache-2.0
#include "preload/udp.hpp"

#include <fcntl.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "preload/address.hpp"
#include "preload/epoll.hpp"
#include "preload/fork.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"

namespace farcall::preload {

namespace detail {
constinit std::array<std::atomic<UdpSocket*>, kMostUdpDescriptors> udp_table{};
}

namespace {

constexpr std::uint32_t kMostSockets = 4096;
constexpr std::uint32_t kPublishAfter = 3;  // receives
constexpr std::uint32_t kFirstJoin = 4;     // sends
constexpr std::uint32_t kKernelEvery = 64;  // receives from memory
constexpr std::uint32_t kBusyAfter = 4;     // empty receives in a row: then the caller spins
constexpr std::uint64_t kLookTicks = 20 * kTicksPerMicrosecond;  // between looks of a spinner
constexpr std::uint64_t kCheckTicks = 10'000 * kTicksPerMicrosecond;

struct Pool {
  std::atomic<std::uint32_t> made;
  UdpSocket sockets[kMostSockets];
};
constinit std::atomic<Pool*> pool{nullptr};
constinit Lock life;  // of the table and of who is in use
constinit std::atomic<int> highest{-1};

Pool* get_pool() noexcept {
  Pool* found = pool.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  const long made = kernel(SYS_mmap, nullptr, sizeof(Pool), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made < 0 && made > -4096) return nullptr;
  auto* mine = reinterpret_cast<Pool*>(made);
  if (pool.compare_exchange_strong(found, mine)) return mine;
  kernel(SYS_munmap, mine, sizeof(Pool));
  return found;
}

template <class Visit>
void for_each_socket(Visit visit) noexcept {
  Pool* all = pool.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const std::uint32_t made = std::min(all->made.load(std::memory_order_relaxed), kMostSockets);
  for (std::uint32_t i = 0; i < made; ++i)
    if (all->sockets[i].references.load(std::memory_order_relaxed) != 0) visit(all->sockets[i]);
}

void unmap(const DatagramMemory& memory) noexcept {
  if (memory.control != nullptr)
    kernel(SYS_munmap, memory.control, kDatagramControlBytes + memory.size);
}

void end_out(OutFlow& flow, OutFlow::State next) noexcept {
  if (flow.state == OutFlow::kJoined) {
    flow.sender.say_gone();
    unmap(flow.sender.memory());
  }
  flow.state = next;
  flow.sends = 0;
  flow.next_try = kFirstJoin;
}

void close_listener(UdpSocket& socket) noexcept {
  if (socket.listener >= 0) close_private(socket.listener);
  socket.listener = -1;
}

// Both locks are held, or nobody else knows the socket.
void drop_flows(UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.out_count; ++i) end_out(socket.out[i], OutFlow::kCandidate);
  socket.out_count = 0;
  socket.last_out = 0;
  socket.peer_known = false;
  while (socket.in_count != 0) udp_drop_in(socket, socket.in_count - 1);
  close_listener(socket);
  socket.next_publish = socket.receives + kPublishAfter;
}

Endpoint endpoint_of(const sockaddr_in6& name) noexcept {
  Endpoint endpoint{};
  Endpoint::from(reinterpret_cast<const sockaddr*>(&name), endpoint);
  return endpoint;
}

// Writes the address as the kernel would for a socket of this family.
void tell_name(sa_family_t family, const Endpoint& from, msghdr& message) noexcept {
  if (message.msg_name == nullptr) return;
  sockaddr_in6 six{};
  sockaddr_in four{};
  const void* name = &six;
  socklen_t length = sizeof six;
  if (family == AF_INET) {
    four.sin_family = AF_INET;
    four.sin_port = htons(from.port);
    std::memcpy(&four.sin_addr, from.address.data() + 12, 4);
    name = &four;
    length = sizeof four;
  } else {
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(from.port);
    std::memcpy(&six.sin6_addr, from.address.data(), 16);
  }
  std::memcpy(message.msg_name, name, std::min(length, message.msg_namelen));
  message.msg_namelen = length;
}

// --- receiving

ssize_t take(UdpSocket& socket, InFlow& flow, msghdr& message, int flags) noexcept {
  if (has_bad_part(message.msg_iov, message.msg_iovlen) || is_bad_optional(message.msg_name))
      [[unlikely]] {
    // The kernel has it lost by then, too.
    flow.receiver.take(nullptr, 0, (flags & MSG_PEEK) != 0);
    return -EFAULT;
  }
  const DatagramReceiver::Taken taken =
      flow.receiver.take(message.msg_iov, message.msg_iovlen, (flags & MSG_PEEK) != 0);
  tell_name(socket.family, flow.from, message);
  message.msg_controllen = 0;
  message.msg_flags = taken.length > taken.bytes ? MSG_TRUNC : 0;
  if (flow.counters != nullptr && (flags & MSG_PEEK) == 0) {
    flow.counters->ring.bytes.fetch_add(taken.bytes, std::memory_order_relaxed);
    flow.counters->ring.messages.fetch_add(1, std::memory_order_relaxed);
    if (!flow.counted) flow.counters->accelerated.fetch_add(1, std::memory_order_relaxed);
    flow.counted = true;
  }
  socket.hot = true;
  socket.empty_calls = 0;
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? taken.length : taken.bytes);
}

// -EAGAIN: nothing in memory, or (`kernel_first`) the kernel has what comes before it.
ssize_t take_from_memory(UdpSocket& socket, msghdr& message, int flags,
                         bool& kernel_first) noexcept {
  kernel_first = false;
  std::size_t index = socket.last_in < socket.in_count ? socket.last_in : 0;
  for (std::size_t tries = socket.in_count; tries != 0; --tries) {
    InFlow& flow = socket.in[index];
    switch (flow.receiver.next()) {
      case DatagramReceiver::Next::ready:
        // The next look begins behind it, so that none is starved; but what has been peeked at is
        // what comes next.
        socket.last_in = (flags & MSG_PEEK) != 0 ? index : index + 1;
        return take(socket, flow, message, flags);
      case DatagramReceiver::Next::kernel_first: kernel_first = true; break;
      case DatagramReceiver::Next::none: break;
      case DatagramReceiver::Next::broken:
        udp_drop_in(socket, index);
        return take_from_memory(socket, message, flags, kernel_first);
    }
    index = index + 1 == socket.in_count ? 0 : index + 1;
  }
  return -EAGAIN;
}

void watch_all(UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_count; ++i) socket.in[i].receiver.watch();
}

void unwatch_all(UdpSocket& socket, int fd) noexcept {
  if (socket.parked != 0 || socket.stay_watched.load(std::memory_order_relaxed) ||
      socket.kernel_only.load(std::memory_order_relaxed))
    return;
  const std::uint32_t here = this_processor();
  bool allowed = false;
  for (std::size_t i = 0; i < socket.in_count; ++i) {
    if (!socket.in[i].began || !socket.in[i].receiver.watched()) continue;
    if (!allowed && !epoll_allows_wake_up(fd)) return;
    allowed = true;
    socket.in[i].receiver.note_processor(here);
    socket.in[i].receiver.unwatch();
  }
}

// Whether take_now() is worth it: it watches, and what is sent meanwhile goes through the kernel.
bool kernel_has_something(UdpSocket& socket, int fd) noexcept {
  socket.ring_receives = 0;
  socket.looked_at = ticks();
  pollfd look{.fd = fd, .events = POLLIN, .revents = 0};
  timespec none{};
  return kernel(SYS_ppoll, &look, 1, &none, nullptr, 0) != 0;
}

// Nothing was in the kernel after so many had been sent there.
void note_empty(UdpSocket& socket, const std::uint64_t* sent) noexcept {
  for (std::size_t i = 0; i < socket.in_count; ++i) {
    // What is received before its sender has counted it is counted here already.
    if (!socket.in[i].began || sent[i] > socket.in[i].receiver.kernel_seen())
      socket.in[i].receiver.kernel_is_empty(sent[i]);
    socket.in[i].began = true;
  }
}

// Flows begin when the kernel's queue is seen empty; asked for only as long as some have not.
void begin_flows(UdpSocket& socket, int fd) noexcept {
  bool all_began = true;
  std::uint64_t sent[UdpSocket::kMostFlows];
  for (std::size_t i = 0; i < socket.in_count; ++i) {
    all_began = all_began && socket.in[i].began;
    sent[i] = socket.in[i].receiver.kernel_sent();
  }
  if (!all_began && !kernel_has_something(socket, fd)) note_empty(socket, sent);
}

// One of the kernel's datagrams has been received.
void note_came(UdpSocket& socket, int fd, const sockaddr_in6& name, std::size_t bytes) noexcept {
  const Endpoint from = endpoint_of(name);
  socket.hot = false;
  for (std::size_t i = 0; i < socket.in_count; ++i) {
    if (socket.in[i].from != from) continue;
    socket.in[i].receiver.came_by_kernel();
    socket.hot = true;
    if (Counters* counters = socket.in[i].counters; counters != nullptr) {
      counters->kernel.bytes.fetch_add(bytes, std::memory_order_relaxed);
      counters->kernel.messages.fetch_add(1, std::memory_order_relaxed);
    }
    if (!socket.in[i].began && socket.receives % 4 == 0) begin_flows(socket, fd);
    return unwatch_all(socket, fd);
  }
}

// recvmsg() of the kernel, with the sender's address even where the program does not want it.
template <class Call>
ssize_t named_receive(msghdr& message, sockaddr_in6& name, Call call) noexcept {
  void* const wanted = message.msg_name;
  const socklen_t room = message.msg_namelen;
  name = {};
  message.msg_name = &name;
  message.msg_namelen = sizeof name;
  const ssize_t result = call(message);
  message.msg_name = wanted;
  if (wanted == nullptr || is_no_address(wanted)) {
    message.msg_namelen = room;
  } else if (result >= 0) {
    std::memcpy(wanted, &name, std::min(room, message.msg_namelen));
  } else {
    message.msg_namelen = room;
  }
  return result;
}

// What the kernel has, without waiting. All flows are watched and have nothing to give before it.
ssize_t look_in_kernel(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  std::uint64_t sent[UdpSocket::kMostFlows];
  for (std::size_t i = 0; i < socket.in_count; ++i) sent[i] = socket.in[i].receiver.kernel_sent();
  sockaddr_in6 name;
  const ssize_t result = named_receive(message, name, [&](msghdr& asked) noexcept {
    return static_cast<ssize_t>(kernel(SYS_recvmsg, fd, &asked, flags | MSG_DONTWAIT));
  });
  socket.ring_receives = 0;
  if (result >= 0) {
    if ((flags & MSG_PEEK) == 0) note_came(socket, fd, name, static_cast<std::size_t>(result));
  } else if (result == -EAGAIN) {
    note_empty(socket, sent);
  }
  return result;
}

// One datagram from memory or from the kernel, without waiting.
ssize_t take_now(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  watch_all(socket);
  bool kernel_first = false;
  ssize_t result = take_from_memory(socket, message, flags, kernel_first);
  if (result != -EAGAIN) return result;
  result = look_in_kernel(socket, fd, message, flags);
  if (result != -EAGAIN || !kernel_first) return result;
  // What the kernel owed is lost.
  for (std::size_t i = 0; i < socket.in_count; ++i)
    if (socket.in[i].receiver.next() == DatagramReceiver::Next::kernel_first)
      socket.in[i].receiver.kernel_has_no_more();
  return take_from_memory(socket, message, flags, kernel_first);
}

bool looks_ready(const UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_count; ++i)
    if (socket.in[i].receiver.looks_ready()) return true;
  return false;
}

bool any_watched(const UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_count; ++i)
    if (socket.in[i].receiver.watched()) return true;
  return false;
}

bool any_awake(const UdpSocket& socket) noexcept {
  for (std::size_t i = 0; i < socket.in_count; ++i)
    if (!socket.in[i].receiver.watched()) return true;
  return false;
}

ssize_t failed(ssize_t result) noexcept {
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// Who has received something is awake, and will watch before it sleeps.
ssize_t received(UdpSocket& socket, int fd, ssize_t result, int flags) noexcept {
  if (result >= 0 && socket.hot && (flags & MSG_PEEK) == 0) unwatch_all(socket, fd);
  return failed(result);
}

// Where the one last ran that sent last.
std::uint32_t senders_processor(const UdpSocket& socket) noexcept {
  const std::size_t index = socket.last_in < socket.in_count ? socket.last_in : 0;
  return socket.in_count == 0 ? 0 : socket.in[index].receiver.sender_processor();
}

// Before this thread sleeps: if somebody who has not read what we sent him is dead, it goes through
// the kernel after all, which says what it says of a port without a socket.
Interruption check_receivers(UdpSocket& socket, int fd, bool may_wait) noexcept;

ssize_t park(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  {
    const Guard guard(socket.receive_lock);
    if (!guard) return -1;
    if (socket.listener >= 0 && (socket.in_count == 0 || ++socket.looks % 16 == 0))
      udp_take_flows(socket, fd);
    // What the kernel has, the call below brings; only what is in memory comes before it.
    watch_all(socket);
    bool kernel_first = false;
    ssize_t result = take_from_memory(socket, message, flags, kernel_first);
    if (result == -EAGAIN && kernel_first) result = take_now(socket, fd, message, flags);
    if (result != -EAGAIN) return received(socket, fd, result, flags);
    ++socket.parked;
  }
  if (check_receivers(socket, fd, true) == Interruption::ends) {
    const Guard guard(socket.receive_lock);
    if (guard && socket.parked != 0) --socket.parked;
    return failed(-EINTR);
  }
  sockaddr_in6 name;
  const ssize_t result = named_receive(message, name, [&](msghdr& asked) noexcept {
    return real::next<"recvmsg", ssize_t(int, msghdr*, int)>()(fd, &asked, flags);
  });
  const int error = errno;
  {
    const Guard guard(socket.receive_lock);
    if (guard) {
      if (socket.parked != 0) --socket.parked;
      if (result >= 0 && (flags & MSG_PEEK) == 0)
        note_came(socket, fd, name, static_cast<std::size_t>(result));
      socket.patience.slept();
    }
  }
  errno = error;
  return result;
}

// True if a datagram is in memory; if not, all that comes from now on comes through the kernel.
bool watch_now(UdpSocket& socket, int fd) noexcept {
  if (socket.listener >= 0 && (socket.in_count == 0 || ++socket.looks % 16 == 0))
    udp_take_flows(socket, fd);
  socket.busy = false;
  socket.empty_calls = 0;
  watch_all(socket);
  begin_flows(socket, fd);
  return looks_ready(socket);
}

bool nonblocking(UdpSocket& socket, int fd, int flags) noexcept {
  if ((flags & MSG_DONTWAIT) != 0) return true;
  if (!socket.flags_known) {
    const long status = kernel(SYS_fcntl, fd, F_GETFL, 0);
    socket.nonblocking = status >= 0 && (status & O_NONBLOCK) != 0;
    socket.flags_known = true;
  }
  return socket.nonblocking;
}

// The first calls, until there are flows: plain, but for being findable.
void count_receive(UdpSocket& socket, int fd) noexcept {
  if (++socket.receives < socket.next_publish || socket.kernel_only.load(std::memory_order_relaxed))
    return;
  if (socket.listener < 0)
    udp_publish(socket, fd);
  else
    udp_take_flows(socket, fd);
  // Each look costs a system call: at first with every call, then with every sixteenth, and hardly
  // ever while there are flows; those who sleep or spin look then.
  const std::uint32_t pause = socket.listener < 0    ? socket.receives
                              : socket.in_count != 0 ? 1024
                              : socket.receives < 64 ? 1
                                                     : 16;
  socket.next_publish = socket.receives + std::min<std::uint32_t>(pause, 1024);
}

// --- sending

OutFlow* find_out(UdpSocket& socket, const Endpoint& to) noexcept {
  if (socket.last_out < socket.out_count && socket.out[socket.last_out].to == to)
    return &socket.out[socket.last_out];
  for (std::size_t i = 0; i < socket.out_count; ++i) {
    if (socket.out[i].to != to) continue;
    socket.last_out = i;
    return &socket.out[i];
  }
  return nullptr;
}

OutFlow* add_out(UdpSocket& socket, int fd, const Endpoint& to) noexcept {
  std::size_t index = socket.out_count;
  if (index == UdpSocket::kMostFlows) {
    // One that is not joined makes room; the joined ones are in use.
    for (index = 0; index < socket.out_count; ++index)
      if (socket.out[index].state != OutFlow::kJoined) break;
    if (index == UdpSocket::kMostFlows) return nullptr;
  } else {
    ++socket.out_count;
  }
  OutFlow& flow = socket.out[index];
  flow = OutFlow{};
  flow.to = to;
  flow.next_try = kFirstJoin;
  socket.last_out = index;
  Endpoint own{};
  const bool local = udp_is_local(to) && udp_own_address(fd, own) && settings().wants(own, to);
  flow.state = local ? OutFlow::kCandidate : OutFlow::kNever;
  if (udp_is_local(to)) {
    flow.counters = socket.counters != nullptr ? socket.counters : counters_for(Protocol::udp, to);
    if (flow.counters != nullptr) {
      if (flow.counters != socket.counters)
        flow.counters->connections.fetch_add(1, std::memory_order_relaxed);
      if (!local) flow.counters->reasons[static_cast<std::size_t>(Reason::excluded)].fetch_add(1);
    }
  }
  return &flow;
}

bool destination(UdpSocket& socket, int fd, const msghdr& message, Endpoint& to) noexcept {
  if (message.msg_name != nullptr && message.msg_namelen != 0) {
    if (message.msg_namelen < sizeof(sockaddr_in)) return false;
    sockaddr_in6 name{};
    std::memcpy(&name, message.msg_name, std::min<std::size_t>(message.msg_namelen, sizeof name));
    if (name.sin6_family == AF_INET6 && message.msg_namelen < sizeof name) return false;
    return Endpoint::from(reinterpret_cast<const sockaddr*>(&name), to) && !is_wildcard(to);
  }
  if (!socket.peer_known) {
    sockaddr_in6 name{};
    socklen_t length = sizeof name;
    socket.peer = {};
    if (kernel(SYS_getpeername, fd, &name, &length) == 0)
      Endpoint::from(reinterpret_cast<const sockaddr*>(&name), socket.peer);
    socket.peer_known = true;
  }
  to = socket.peer;
  return to.port != 0;
}

ssize_t send_by_kernel(int fd, const msghdr& message, int flags) noexcept {
  return real::next<"sendmsg", ssize_t(int, const msghdr*, int)>()(fd, &message, flags);
}

// The receiver is dead or has gone; what it has not read goes again.
void give_back(const UdpSocket& socket, int fd, OutFlow& flow) noexcept {
  flow.sender.take_back([&](const std::byte* first, std::size_t first_size, const std::byte* second,
                            std::size_t second_size) noexcept {
    iovec parts[2] = {{const_cast<std::byte*>(first), first_size},
                      {const_cast<std::byte*>(second), second_size}};
    sockaddr_in6 name{};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_name = &name;
    message.msg_namelen = sizeof name;
    tell_name(socket.family, flow.to, message);
    kernel(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
  end_out(flow, OutFlow::kCandidate);
}

Interruption check_receivers(UdpSocket& socket, int fd, bool may_wait) noexcept {
  const auto is_unread = [](const OutFlow& flow) noexcept {
    return flow.state == OutFlow::kJoined && !flow.sender.all_read();
  };
  bool unread = false;
  {
    const Guard guard(socket.send_lock);
    if (!guard) return Interruption::none;
    for (std::size_t i = 0; i < socket.out_count; ++i) unread = unread || is_unread(socket.out[i]);
  }
  if (!unread) return Interruption::none;
  // Usually the receiver just had no turn yet; asking the kernel costs more than most waits.
  if (may_wait) {
    const HeldSignals held;
    pollfd coming{.fd = fd, .events = POLLIN, .revents = 0};
    timespec moment{.tv_sec = 0, .tv_nsec = 1'000'000};
    if (kernel(SYS_ppoll, &coming, 1, &moment, nullptr, 0) != 0) return Interruption::none;
    if (const Interruption owed = held.interruption(); owed != Interruption::none) return owed;
  }
  const Guard guard(socket.send_lock);
  if (!guard) return Interruption::none;
  for (std::size_t i = 0; i < socket.out_count; ++i) {
    OutFlow& flow = socket.out[i];
    if (is_unread(flow) && (flow.sender.receiver_gone() || !udp_still_there(flow)))
      give_back(socket, fd, flow);
  }
  return Interruption::none;
}

// --- fork: parent and child go on with the kernel alone, for each would see half of the datagrams.

void before_fork() noexcept {
  life.lock();
  for_each_socket([](UdpSocket& socket) {
    socket.send_lock.lock();
    socket.receive_lock.lock();
  });
}

void after_fork_in_parent() noexcept {
  for_each_socket([](UdpSocket& socket) {
    socket.kernel_only.store(true, std::memory_order_relaxed);
    watch_all(socket);
    for (std::size_t i = 0; i < socket.out_count; ++i) end_out(socket.out[i], OutFlow::kNever);
    close_listener(socket);
    socket.receive_lock.unlock();
    socket.send_lock.unlock();
  });
  life.unlock();
}

void after_fork_in_child() noexcept {
  for_each_socket([](UdpSocket& socket) {
    socket.kernel_only.store(true, std::memory_order_relaxed);
    // What is still in memory is the parent's to read.
    for (std::size_t i = 0; i < socket.in_count; ++i) unmap(socket.in[i].receiver.memory());
    for (std::size_t i = 0; i < socket.out_count; ++i) {
      if (socket.out[i].state == OutFlow::kJoined) unmap(socket.out[i].sender.memory());
      socket.out[i].state = OutFlow::kNever;
    }
    socket.in_count = 0;
    socket.listener = -1;
    socket.receive_lock.unlock();
    socket.send_lock.unlock();
  });
  life.unlock();
}

[[gnu::constructor]] void start() noexcept {
  at_fork({before_fork, after_fork_in_parent, after_fork_in_child});
}

}  // namespace

void udp_drop_in(UdpSocket& socket, std::size_t index) noexcept {
  InFlow& flow = socket.in[index];
  flow.receiver.say_gone();
  unmap(flow.receiver.memory());
  flow = socket.in[--socket.in_count];
  socket.in[socket.in_count].used = false;
}

void udp_note(int fd, int domain, int type, int protocol) noexcept {
  constexpr int kTypeFlags = SOCK_NONBLOCK | SOCK_CLOEXEC;
  if (fd < 0 || (domain != AF_INET && domain != AF_INET6) || (type & ~kTypeFlags) != SOCK_DGRAM ||
      (protocol != 0 && protocol != IPPROTO_UDP) || fd >= kMostUdpDescriptors)
    return;
  if (!settings().enabled || !settings().udp) return;
  Pool* all = get_pool();
  if (all == nullptr) return;
  const Guard guard(life);
  if (!guard) return;
  UdpSocket* free = nullptr;
  const std::uint32_t made = all->made.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < made && free == nullptr; ++i)
    if (all->sockets[i].references.load(std::memory_order_relaxed) == 0) free = &all->sockets[i];
  if (free == nullptr) {
    if (made == kMostSockets) return;
    free = &all->sockets[made];
    all->made.store(made + 1, std::memory_order_release);
  }
  // Only what is looked at before it is written; the flows are counted.
  free->family = static_cast<sa_family_t>(domain);
  free->kernel_only.store(false, std::memory_order_relaxed);
  free->stay_watched.store(false, std::memory_order_relaxed);
  free->bound = free->peer_known = free->hot = free->busy = free->flags_known = false;
  free->counters = nullptr;
  free->out_count = free->last_out = free->in_count = free->last_in = 0;
  free->receives = free->parked = free->empty_calls = free->ring_receives = free->looks = 0;
  free->next_publish = kPublishAfter;
  free->listener = -1;
  ++free->generation;
  free->patience = Patience{};
  free->references.store(1, std::memory_order_relaxed);
  if (fd > highest.load(std::memory_order_relaxed)) highest.store(fd, std::memory_order_relaxed);
  // release: pairs with the acquire in find_udp()
  detail::udp_table[static_cast<std::size_t>(fd)].store(free, std::memory_order_release);
}

int udp_highest() noexcept { return highest.load(std::memory_order_relaxed); }

void udp_bound(UdpSocket& socket, int fd) noexcept {
  Endpoint own{};
  socket.bound = true;
  if (!stats_wanted() || !udp_own_address(fd, own)) return;
  socket.counters = counters_for(Protocol::udp, own);
  if (socket.counters != nullptr)
    socket.counters->connections.fetch_add(1, std::memory_order_relaxed);
}

void udp_connected(UdpSocket& socket, int) noexcept {
  const Guard sending(socket.send_lock);
  const Guard receiving(socket.receive_lock);
  if (sending && receiving) drop_flows(socket);
}

void udp_option(UdpSocket& socket, int, int level, int option) noexcept {
  // These change nothing that the library does; all others might.
  if (level == SOL_SOCKET &&
      (option == SO_RCVBUF || option == SO_SNDBUF || option == SO_RCVBUFFORCE ||
       option == SO_SNDBUFFORCE || option == SO_RCVTIMEO || option == SO_SNDTIMEO ||
       option == SO_REUSEADDR || option == SO_PRIORITY || option == SO_BROADCAST ||
       option == SO_RCVLOWAT || option == SO_KEEPALIVE || option == SO_BUSY_POLL ||
       option == SO_LINGER || option == SO_DONTROUTE || option == SO_OOBINLINE))
    return;
  if (level == IPPROTO_IP &&
      (option == IP_TOS || option == IP_TTL || option == IP_MTU_DISCOVER ||
       option == IP_MULTICAST_TTL || option == IP_MULTICAST_LOOP || option == IP_MULTICAST_IF))
    return;
  if (level == IPPROTO_IPV6 && (option == IPV6_V6ONLY || option == IPV6_UNICAST_HOPS ||
                                option == IPV6_TCLASS || option == IPV6_MTU_DISCOVER ||
                                option == IPV6_MULTICAST_HOPS || option == IPV6_MULTICAST_LOOP))
    return;
  if (socket.counters != nullptr)
    socket.counters->reasons[static_cast<std::size_t>(Reason::option)].fetch_add(1);
  udp_leave(socket);
}

void udp_duplicated(UdpSocket& socket, int copy) noexcept {
  if (static_cast<unsigned>(copy) >= static_cast<unsigned>(kMostUdpDescriptors)) return;
  const Guard guard(life);
  if (!guard) return;
  socket.references.fetch_add(1, std::memory_order_relaxed);
  if (copy > highest.load(std::memory_order_relaxed))
    highest.store(copy, std::memory_order_relaxed);
  detail::udp_table[static_cast<std::size_t>(copy)].store(&socket, std::memory_order_release);
}

void udp_forget(int fd) noexcept {
  if (find_udp(fd) == nullptr) return;
  const Guard guard(life);
  if (!guard) return;
  UdpSocket* socket = detail::udp_table[static_cast<std::size_t>(fd)].exchange(nullptr);
  if (socket == nullptr) return;
  if (socket->references.load(std::memory_order_relaxed) == 1) {
    const Guard sending(socket->send_lock);
    const Guard receiving(socket->receive_lock);
    drop_flows(*socket);
  }
  socket->references.fetch_sub(1, std::memory_order_relaxed);
}

void udp_leave(UdpSocket& socket) noexcept {
  if (socket.kernel_only.exchange(true)) return;
  {
    const Guard sending(socket.send_lock);
    if (sending)
      for (std::size_t i = 0; i < socket.out_count; ++i) end_out(socket.out[i], OutFlow::kNever);
  }
  const Guard receiving(socket.receive_lock);
  if (!receiving) return;
  close_listener(socket);
  // What is there may still be read; nothing follows it.
  watch_all(socket);
}

ssize_t udp_send(UdpSocket& socket, int fd, const msghdr& message, int flags) noexcept {
  constexpr int kPlainFlags = MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM;
  if (has_bad_part(message.msg_iov, message.msg_iovlen) || is_bad_optional(message.msg_name))
      [[unlikely]]
    return send_by_kernel(fd, message, flags);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
  Guard guard(socket.send_lock);
  Endpoint to{};
  if (!guard || socket.kernel_only.load(std::memory_order_relaxed) ||
      !destination(socket, fd, message, to)) {
    guard.unlock();
    return send_by_kernel(fd, message, flags);
  }
  OutFlow* flow = find_out(socket, to);
  if (flow == nullptr) flow = add_out(socket, fd, to);
  if (flow == nullptr || flow->state == OutFlow::kNever) {
    guard.unlock();
    return send_by_kernel(fd, message, flags);
  }
  if (flow->state == OutFlow::kJoined) {
    const std::uint64_t now = ticks();
    flow->sender.note_processor(this_processor());
    if (now - flow->checked_at > kCheckTicks) {
      flow->checked_at = now;
      if (flow->sender.receiver_gone() || !udp_still_there(*flow)) give_back(socket, fd, *flow);
    }
  }
  if (flow->state == OutFlow::kJoined && message.msg_controllen == 0 &&
      (flags & ~kPlainFlags) == 0 && bytes <= kMostDatagram &&
      flow->sender.send(message.msg_iov, message.msg_iovlen, bytes)) {
    if (flow->counters != nullptr) {
      flow->counters->ring.bytes.fetch_add(bytes, std::memory_order_relaxed);
      flow->counters->ring.messages.fetch_add(1, std::memory_order_relaxed);
    }
    return static_cast<ssize_t>(bytes);
  }
  if (flow->state == OutFlow::kJoined && flow->sender.receiver_gone()) give_back(socket, fd, *flow);
  if (flow->state == OutFlow::kCandidate && ++flow->sends >= flow->next_try) {
    udp_try_join(socket, fd, *flow);
    if (flow->state == OutFlow::kCandidate)
      flow->next_try = flow->sends + std::min<std::uint32_t>(flow->sends, 4096);
  }
  // The lock is held on: whatever another thread puts into memory comes after this. Only a send
  // buffer that is full makes a UDP socket wait, and loopback does not fill it.
  const ssize_t result = send_by_kernel(fd, message, flags);
  if (result >= 0) {
    if (flow->state == OutFlow::kJoined) flow->sender.sent_by_kernel();
    if (flow->counters != nullptr) {
      flow->counters->kernel.bytes.fetch_add(static_cast<std::uint64_t>(result),
                                             std::memory_order_relaxed);
      flow->counters->kernel.messages.fetch_add(1, std::memory_order_relaxed);
    }
  }
  return result;
}

ssize_t udp_receive(UdpSocket& socket, int fd, msghdr& message, int flags) noexcept {
  const auto by_kernel = [&]() noexcept {
    return real::next<"recvmsg", ssize_t(int, msghdr*, int)>()(fd, &message, flags);
  };
  if ((flags & (MSG_ERRQUEUE | MSG_OOB)) != 0) return by_kernel();
  Guard guard(socket.receive_lock);
  if (!guard) return by_kernel();
  count_receive(socket, fd);
  if (socket.in_count == 0) {
    guard.unlock();
    const ssize_t result = by_kernel();
    if (result >= 0 && socket.counters != nullptr && (flags & MSG_PEEK) == 0) {
      socket.counters->kernel.bytes.fetch_add(static_cast<std::uint64_t>(result),
                                              std::memory_order_relaxed);
      socket.counters->kernel.messages.fetch_add(1, std::memory_order_relaxed);
    }
    return result;
  }
  bool kernel_first = false;
  ssize_t result = -EAGAIN;
  // What has been sent while we were watching is in the kernel.
  bool look = any_watched(socket) ||
              (++socket.ring_receives >= kKernelEvery && kernel_has_something(socket, fd));
  if (!look) {
    result = take_from_memory(socket, message, flags, kernel_first);
    if (result != -EAGAIN) return failed(result);
    look = kernel_first;
  }
  if (look) {
    result = take_now(socket, fd, message, flags);
    if (result != -EAGAIN) return received(socket, fd, result, flags);
  }
  if (nonblocking(socket, fd, flags)) {
    // A program that keeps coming waits with this call; the kernel need not be asked each time.
    if (++socket.empty_calls >= kBusyAfter) socket.busy = true;
    if (!look && (!socket.busy || ticks() - socket.looked_at > kLookTicks ||
                  epoll_told_since(fd, socket.looked_at))) {
      look = kernel_has_something(socket, fd);
      if (socket.listener >= 0 && ++socket.looks % 16 == 0) udp_take_flows(socket, fd);
      if (look) {
        result = take_now(socket, fd, message, flags);
        if (result != -EAGAIN) return received(socket, fd, result, flags);
      }
    }
    if (socket.busy) {
      unwatch_all(socket, fd);
      // Who spins on the processor that the sender needs waits for the end of its own turn.
      if (senders_processor(socket) == this_processor()) {
        kernel(SYS_sched_yield);
        result = take_from_memory(socket, message, flags, kernel_first);
        if (result != -EAGAIN) return failed(result);
      }
    }
    return failed(-EAGAIN);
  }
  socket.busy = false;
  if (socket.hot) {
    unwatch_all(socket, fd);
    // The lock is held meanwhile: who closes the socket waits for this moment to pass.
    if (socket.patience.stay_awake([&]() noexcept { return looks_ready(socket); },
                                   [&]() noexcept { return senders_processor(socket); })) {
      result = take_from_memory(socket, message, flags, kernel_first);
      if (result != -EAGAIN) return failed(result);
    } else if (socket.patience.interruption() == Interruption::ends) {
      return failed(-EINTR);
    }
  }
  guard.unlock();
  socket.hot = false;
  return park(socket, fd, message, flags);
}

void udp_flags_changed(UdpSocket& socket) noexcept {
  const Guard guard(socket.receive_lock);
  socket.flags_known = false;
}

bool udp_watch(UdpSocket& socket, int fd) noexcept {
  (void)check_receivers(socket, fd, false);
  const Guard guard(socket.receive_lock);
  return guard && watch_now(socket, fd);
}

bool udp_watch_for_good(UdpSocket& socket, int fd) noexcept {
  socket.stay_watched.store(true, std::memory_order_relaxed);
  return udp_watch(socket, fd);
}

bool udp_enter_kernel(UdpSocket& socket, int fd, UdpTicket& ticket) noexcept {
  (void)check_receivers(socket, fd, false);
  const Guard guard(socket.receive_lock);
  ticket = {};
  if (!guard) return false;
  ticket = {.generation = socket.generation, .was_awake = any_awake(socket)};
  ++socket.parked;
  return watch_now(socket, fd);
}

void udp_leave_kernel(UdpSocket& socket, int fd, const UdpTicket& ticket) noexcept {
  const Guard guard(socket.receive_lock);
  if (!guard || socket.generation != ticket.generation) return;
  if (socket.parked != 0) --socket.parked;
  if (ticket.was_awake) unwatch_all(socket, fd);
}

bool udp_awake(const UdpSocket& socket) noexcept {
  return socket.in_count != 0 && !socket.stay_watched.load(std::memory_order_relaxed) &&
         !socket.kernel_only.load(std::memory_order_relaxed);
}

std::uint64_t udp_position(UdpSocket& socket) noexcept {
  if (socket.in_count == 0 || !socket.receive_lock.try_lock()) return kNoDatagram;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < socket.in_count; ++i) sum += socket.in[i].receiver.published();
  if (!looks_ready(socket)) sum = kNoDatagram;
  socket.receive_lock.unlock();
  return sum;
}

bool udp_readable(UdpSocket& socket) noexcept {
  const Guard guard(socket.receive_lock);
  return guard && looks_ready(socket);
}

void udp_note_processor(UdpSocket& socket, std::uint32_t here) noexcept {
  const Guard guard(socket.receive_lock);
  if (!guard) return;
  for (std::size_t i = 0; i < socket.in_count; ++i) socket.in[i].receiver.note_processor(here);
}

std::uint32_t udp_senders_processor(UdpSocket& socket) noexcept {
  if (!socket.receive_lock.try_lock()) return 0;
  const std::uint32_t processor = senders_processor(socket);
  socket.receive_lock.unlock();
  return processor;
}

int udp_next_size(UdpSocket& socket) noexcept {
  const Guard guard(socket.receive_lock);
  if (!guard || socket.in_count == 0) return -1;
  char byte = 0;
  iovec part{.iov_base = &byte, .iov_len = 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  bool kernel_first = false;
  return static_cast<int>(
      std::max<ssize_t>(take_from_memory(socket, message, MSG_PEEK | MSG_TRUNC, kernel_first), -1));
}

}  // namespace farcall::preload
