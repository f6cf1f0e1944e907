// SPDX-License-Identifier: Apache-2.0
//
// The sender's steps towards shared memory, see meet.hpp.
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>

#include "preload/close_apart.hpp"
#include "preload/diag.hpp"
#include "preload/observed.hpp"
#include "preload/permitted.hpp"
#include "preload/real.hpp"
#include "preload/side.hpp"
#include "preload/udp/meet.hpp"

namespace farcall::preload {
namespace {

constexpr long kAnswerNanoseconds = 2'000'000;
// A connection to whoever publishes `to`, or to its port at any address.
int visit(const Endpoint& to) noexcept {
  Endpoint any_v4{};
  std::memcpy(any_v4.address.data(), kMappedV4.data(), kMappedV4.size());
  any_v4.port = to.port;
  Endpoint any{};
  any.port = to.port;
  for (const Endpoint& name : {to, any_v4, any}) {
    if (name == any_v4 && !udp_is_v4(to)) continue;
    sockaddr_un address;
    const socklen_t length = meeting_name(name, address);
    const long fd = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    if (kernel(SYS_connect, fd, &address, length) == 0) return static_cast<int>(fd);
    kernel(SYS_close, fd);
  }
  return -1;
}

// A free place among the flows; those whose receivers have gone make room.
OutFlow* free_out(UdpSocket& socket) noexcept {
  OutFlow* found = nullptr;
  for (OutFlow& flow : socket.out) {
    if (flow.used && flow.sender.receiver_gone()) udp_end_out(socket, *flow.target, true);
    if (!flow.used) found = &flow;
  }
  if (found != nullptr) return found;
  for (OutFlow& flow : socket.out) {
    if (udp_still_there(flow)) continue;
    udp_end_out(socket, *flow.target, true);
    found = &flow;
  }
  return found;
}

void begin_joining(UdpSocket& socket, int fd, Target& target) noexcept {
  Joining& joining = socket.joining;
  const int connection = visit(target.to);
  if (connection < 0) return;
  ucred peer{};
  FoundSocket found{};
  Endpoint from{};
  if (!peer_may_share(connection, peer)) {
    target.state = Target::kKernel;
    count(target.counters, Reason::other_user);
  } else if (!udp_source_of(fd, target.to, from) || find_receiver(from, target.to, found) != 0 ||
             found.uid != peer.uid) {
    count(target.counters, Reason::no_proof);
  } else {
    joining = {.connection = make_private(connection),
               .asked = false,
               .same_process = peer.pid == own_pid(),
               .looks = 0,
               .target = &target,
               .from = from,
               .receiver_cookie = found.cookie};
    target.state = Target::kJoining;
    return;
  }
  kernel(SYS_close, connection);
}

// The receiver is there. False: it is given up.
bool show_socket(UdpSocket& socket, int fd, Target& target) noexcept {
  Joining& joining = socket.joining;
  OutFlow* const flow = free_out(socket);
  if (flow == nullptr || !udp_count_flow()) {
    count(target.counters, Reason::too_many);
    return false;
  }
  Hello hello{.magic = kMagic,
              .sender_cookie = cookie_of(fd),
              .receiver_cookie = joining.receiver_cookie,
              .ring_bytes = settings().ring_bytes,
              .from = joining.from,
              .to = target.to,
              .sender_fd = fd};
  const int memory = create_memory("farcall-udp", kDatagramControlBytes + hello.ring_bytes);
  DatagramMemory mapped;
  const int witness = make_witness(fd);
  bool done = memory >= 0 && witness >= 0 && map_flow(memory, hello.ring_bytes, mapped);
  if (done) {
    flow->used = true;
    flow->target = &target;
    flow->from = joining.from;
    flow->receiver_cookie = joining.receiver_cookie;
    flow->sender.start(mapped);
    flow->observed = observe_flow(observe::Role::writer, fd, memory, joining.from, target.to);
    target.flow = static_cast<std::uint8_t>(flow - socket.out.data());
    joining.asked = true;
    const int fds[] = {memory, witness};
    done = send_with(joining.connection, &hello, sizeof hello, fds, std::size(fds));
  } else {
    udp_uncount_flow();
    count(target.counters, witness < 0 ? Reason::no_proof : Reason::no_memory);
  }
  for (const int passed : {memory, witness})
    if (passed >= 0) kernel(SYS_close, passed);
  return done;
}

// The next thing that the receiver says. False: the joining is given up.
bool go_on_joining(UdpSocket& socket, int fd, Target& target) noexcept {
  Joining& joining = socket.joining;
  Answer answer{};
  Passed passed;
  if (!is_private(joining.connection)) return false;
  const long got = receive_with(joining.connection, &answer, sizeof answer, passed);
  if (got == -EAGAIN) return ++joining.looks < kMostLooks;
  if (got < 0 || answer.magic != kMagic || answer.receiver_cookie != joining.receiver_cookie)
    return false;
  if (!joining.asked) {
    if (passed.fds[0] >= 0) return false;
    take_message(joining.connection, passed);
    return show_socket(socket, fd, target);
  }
  FoundSocket found{};
  if (find_receiver(joining.from, target.to, found) != 0 ||
      found.cookie != joining.receiver_cookie || !is_witness_of(passed.fds[0], found.inode) ||
      passed.fds[1] >= 0) {
    count(target.counters, Reason::no_proof);
    return false;
  }
  socket.out[target.flow].checked_at = now_ticks();
  observe::set_carrier(socket.out[target.flow].observed, observe::Carrier::memory);
  target.state = Target::kJoined;
  take_message(joining.connection, passed);
  close_visitor(joining.connection);
  joining.connection = -1;
  return true;
}

}  // namespace

void udp_give_up_joining(UdpSocket& socket) noexcept {
  Joining& joining = socket.joining;
  if (joining.connection < 0) return;
  // What it holds goes with it.
  close_visitor(joining.connection);
  joining.connection = -1;
  if (joining.asked)
    udp_end_out(socket, *joining.target, true);
  else
    joining.target->state = Target::kCandidate;
}

void udp_join(UdpSocket& socket, int fd, Target& target) noexcept {
  if (!acceleration_is_permitted()) {
    target.state = Target::kKernel;
    return;
  }
  Joining& joining = socket.joining;
  if (joining.connection >= 0 && joining.target != &target) {
    if (++joining.looks >= kMostLooks) udp_give_up_joining(socket);
    return;
  }
  if (target.state == Target::kCandidate) return begin_joining(socket, fd, target);
  if (!go_on_joining(socket, fd, target)) udp_give_up_joining(socket);
}

void udp_await_joined(UdpSocket& socket, int fd) noexcept {
  Guard guard(socket.send_lock);
  Joining& joining = socket.joining;
  if (!guard || joining.connection < 0 || !joining.asked || joining.same_process) return;
  pollfd coming{.fd = joining.connection, .events = POLLIN, .revents = 0};
  const timespec moment{.tv_sec = 0, .tv_nsec = kAnswerNanoseconds};
  guard.unlock();
  const bool answered = kernel(SYS_ppoll, &coming, 1, &moment, nullptr, 0) == 1;
  if (!guard.lock() || joining.connection != coming.fd || !joining.asked) return;
  if (!answered || !go_on_joining(socket, fd, *joining.target)) udp_give_up_joining(socket);
}

}  // namespace farcall::preload
