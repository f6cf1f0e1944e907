// SPDX-License-Identifier: Apache-2.0
//
// The receiver's steps towards shared memory, see meet.hpp.
#include <netinet/in.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "preload/close_apart.hpp"
#include "preload/diag.hpp"
#include "preload/observed.hpp"
#include "preload/permitted.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"
#include "preload/udp/meet.hpp"

namespace farcall::preload {
namespace {

constexpr int kBacklog = 32;

// Those who have gone, or died, and whose datagrams have all been read, make room.
void end_gone(UdpSocket& socket, bool also_dead) noexcept {
  socket.each_in([&](InFlow& flow) {
    if (flow.receiver.looks_ready()) return;
    if (flow.receiver.sender_gone() || flow.state == InFlow::kEnding ||
        (also_dead && !is_reached(flow.to, flow.from, flow.sender_cookie)))
      udp_end_if_read(socket, flow);
  });
}

InFlow* free_in(UdpSocket& socket) noexcept {
  for (int tries = 0; tries < 2; ++tries) {
    for (InFlow& flow : socket.in)
      if (flow.state == InFlow::kFree) return &flow;
    end_gone(socket, true);
  }
  return nullptr;
}

// What the guest has left, if it can be believed.
InFlow* take_flow(UdpSocket& socket, int fd, const ucred& peer, const Hello& hello,
                  Passed& passed) noexcept {
  FoundSocket sender{};
  if (hello.magic != kMagic || hello.receiver_cookie != cookie_of(fd) ||
      !is_sound_ring(hello.ring_bytes) ||
      !is_sound_memory(passed.fds[0], kDatagramControlBytes + hello.ring_bytes) ||
      !settings().wants(hello.from, hello.to) ||
      // A socket of all addresses is found under any, but sends from those of this machine.
      udp_is_v4(hello.from) != udp_is_v4(hello.to) || !udp_is_local(hello.from) ||
      !udp_is_local(hello.to) || !is_reached(hello.from, hello.to, hello.receiver_cookie) ||
      find_receiver(hello.to, hello.from, sender) != 0 || sender.cookie != hello.sender_cookie ||
      sender.uid != peer.uid || !is_witness_of(passed.fds[1], sender.inode))
    return nullptr;
  take_message(socket.guest, passed);
  // One that has begun anew, or another socket at the same address, comes after what was there.
  socket.each_in([&](InFlow& flow) {
    if (flow.from == hello.from) udp_let_end(flow);
  });
  end_gone(socket, false);
  InFlow* const flow = free_in(socket);
  DatagramMemory mapped;
  if (flow == nullptr || !udp_count_flow()) return nullptr;
  if (!map_flow(passed.fds[0], hello.ring_bytes, mapped)) {
    udp_uncount_flow();
    return nullptr;
  }
  flow->began = flow->received_by_kernel = flow->counted = false;
  flow->from = hello.from;
  flow->to = hello.to;
  flow->sender_cookie = hello.sender_cookie;
  flow->sender_pid = peer.pid;
  flow->sender_fd = hello.sender_fd;
  flow->lost_at = flow->uncounted_since = 0;
  flow->owed_in_vain = flow->has_lost = false;
  flow->counters =
      socket.counters != nullptr ? socket.counters : counters_for(Protocol::udp, hello.from);
  flow->receiver.start(mapped);
  flow->observed = observe_flow(observe::Role::reader, fd, passed.fds[0], hello.to, hello.from);
  flow->state = InFlow::kUsed;
  const auto behind = static_cast<std::size_t>(flow - socket.in.data()) + 1;
  socket.in_end = std::max(socket.in_end, behind);
  return flow;
}

void close_guest(UdpSocket& socket) noexcept {
  close_visitor(socket.guest);
  socket.guest = -1;
}

// Somebody comes to the door, and is told that this end is there. False: nobody does.
bool let_in(UdpSocket& socket, int fd) noexcept {
  const long guest =
      kernel(SYS_accept4, socket.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (guest < 0) return false;
  socket.guest = make_private(static_cast<int>(guest));
  socket.guest_looks = 0;
  ucred peer{};
  Answer answer{.magic = kMagic, .receiver_cookie = cookie_of(fd)};
  if (!peer_may_share(socket.guest, peer) ||
      !send_with(socket.guest, &answer, sizeof answer, nullptr, 0))
    close_guest(socket);
  return true;
}

bool answer_guest(const UdpSocket& socket, int fd, std::uint64_t cookie) noexcept {
  Answer answer{.magic = kMagic, .receiver_cookie = cookie};
  const int witness = make_witness(fd);
  if (witness < 0) return false;
  const bool shown = send_with(socket.guest, &answer, sizeof answer, &witness, 1);
  kernel(SYS_close, witness);
  return shown;
}

// False: the guest has not come so far.
bool serve_guest(UdpSocket& socket, int fd) noexcept {
  Hello hello{};
  Passed passed;
  if (!is_private(socket.guest)) {
    socket.guest = -1;
    return true;
  }
  const long got = receive_with(socket.guest, &hello, sizeof hello, passed);
  if (got == -EAGAIN && ++socket.guest_looks < kMostLooks) return false;
  ucred peer{};
  if (got > 0 && peer_may_share(socket.guest, peer)) {
    InFlow* const flow = take_flow(socket, fd, peer, hello, passed);
    if (flow != nullptr && !answer_guest(socket, fd, hello.receiver_cookie))
      udp_end_in(socket, *flow);
  }
  close_guest(socket);
  return true;
}

bool receives_plainly(int fd) noexcept {
  // What changes a received datagram, or who gets it.
  struct Option {
    int level, name;
  };
  constexpr Option kOptions[] = {{SOL_SOCKET, SO_REUSEADDR},    {SOL_SOCKET, SO_REUSEPORT},
                                 {SOL_SOCKET, SO_TIMESTAMP},    {SOL_SOCKET, SO_TIMESTAMPNS},
                                 {SOL_SOCKET, SO_TIMESTAMPING}, {SOL_SOCKET, SO_RXQ_OVFL},
                                 {IPPROTO_IP, IP_PKTINFO},      {IPPROTO_IP, IP_RECVTTL},
                                 {IPPROTO_IP, IP_RECVTOS},      {IPPROTO_IP, IP_RECVORIGDSTADDR}};
  for (const Option& option : kOptions) {
    int value = 0;
    socklen_t size = sizeof value;
    if (kernel(SYS_getsockopt, fd, option.level, option.name, &value, &size) == 0 && value != 0)
      return false;
  }
  return true;
}

}  // namespace

socklen_t meeting_name(const Endpoint& endpoint, sockaddr_un& name) noexcept {
  constexpr char kPrefix[] = "farcall/udp/";
  constexpr char kDigits[] = "0123456789abcdef";
  name = {};
  name.sun_family = AF_UNIX;
  char* to = name.sun_path + 1;
  std::memcpy(to, kPrefix, sizeof kPrefix - 1);
  to += sizeof kPrefix - 1;
  const auto put = [&](unsigned byte) {
    *to++ = kDigits[byte >> 4];
    *to++ = kDigits[byte & 15];
  };
  for (const std::uint8_t byte : endpoint.address) put(byte);
  put(endpoint.port >> 8);
  put(endpoint.port & 255U);
  return static_cast<socklen_t>(to - reinterpret_cast<char*>(&name));
}

bool map_flow(int memory, std::uint64_t ring_bytes, DatagramMemory& mapped) noexcept {
  const long at = kernel(SYS_mmap, nullptr, kDatagramControlBytes + ring_bytes,
                         PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (at < 0 && at > -4096) return false;
  auto* base = reinterpret_cast<std::byte*>(at);
  mapped = {.control = reinterpret_cast<DatagramControl*>(base),
            .bytes = base + kDatagramControlBytes,
            .size = ring_bytes};
  return true;
}

void udp_publish(UdpSocket& socket, int fd) noexcept {
  Endpoint own{};
  if (!address_of(SYS_getsockname, fd, own) || own.port == 0) return;
  const bool permitted = acceleration_is_permitted();
  if (!permitted || !receives_plainly(fd)) {
    count(socket.counters, permitted ? Reason::option : Reason::unseen);
    udp_watch_all(socket);
    return udp_leave(socket);
  }
  sockaddr_un name;
  const socklen_t length = meeting_name(own, name);
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return;
  const int listener = make_private(static_cast<int>(made));
  if (kernel(SYS_bind, listener, &name, length) < 0 || kernel(SYS_listen, listener, kBacklog) < 0) {
    close_private(listener);
    return;
  }
  // release: pairs with the acquire in end_flows_beside()
  socket.port.store(own.port, std::memory_order_release);
  socket.listener = listener;
}

void udp_close_listener(UdpSocket& socket) noexcept {
  if (socket.listener >= 0) close_listener(socket.listener);
  if (socket.guest >= 0) close_visitor(socket.guest);
  socket.listener = socket.guest = -1;
}

void udp_take_flows(UdpSocket& socket, int fd) noexcept {
  if (socket.listener < 0) return;
  if (!is_private(socket.listener)) {
    socket.listener = -1;  // somebody has closed all descriptors that it did not know
    return;
  }
  end_gone(socket, false);
  constexpr int kMostAtOnce = 4;
  for (int i = 0; i < kMostAtOnce; ++i) {
    if (socket.guest < 0 && !let_in(socket, fd)) return;
    if (socket.guest >= 0 && !serve_guest(socket, fd)) return;
  }
}

void udp_look_at_door(UdpSocket& socket, int fd) noexcept {
  if (socket.guest >= 0 || socket.in_end == 0 || ++socket.looks % 8 == 0)
    udp_take_flows(socket, fd);
}

}  // namespace farcall::preload
