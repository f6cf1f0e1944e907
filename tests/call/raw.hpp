// SPDX-License-Identifier: Apache-2.0
//
// Sessions made by hand, so that every bit can be wrong.
#pragma once

#include <gtest/gtest.h>
#include <linux/futex.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <array>
#include <random>
#include <vector>

#include "call/session.hpp"
#include "farcall/error.hpp"
#include "harness/child.hpp"
#include "harness/killer.hpp"
#include "harness/usage.hpp"

namespace farcall::call::test {

using namespace std::chrono_literals;
using namespace farcall::test;

// The descriptor that the next packet brings; none where it brings none, or several.
[[gnu::noinline]] inline UniqueFd take_only_descriptor(int socket) {
  Packet packet = take_packet(socket);
  return UniqueFd(packet.descriptors.size() == 1 ? packet.descriptors[0].release() : -1);
}

inline void wake_sleeper(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

// What a client shares with the server. Throws SystemError where the server has hung up.
struct RawSession {
  explicit RawSession(int port, bool formatted = true, bool patient = true)
      : memory(SharedMemory::create(call::kSessionBytes)) {
    void* address =
        ::mmap(nullptr, memory.size(), PROT_READ | PROT_WRITE, MAP_SHARED, memory.fd(), 0);
    mapping = Mapping(address, memory.size());
    if (formatted) control().magic = call::SessionControl::kMagic;
    auto [here, there] = packet_socket_pair();
    answers = std::move(here);
    if (patient) {
      send_descriptors(port, std::array{memory.fd(), there.get()}, call::kPurposeSession);
    }
    other_end = std::move(there);
  }
  // Whether the server lets it in.
  bool welcome() {
    other_end.reset();
    pollfd answer{.fd = answers.get(), .events = POLLIN, .revents = 0};
    if (::poll(&answer, 1, static_cast<int>(kPatience.count())) != 1) return false;
    socket = take_only_descriptor(answers.get());
    return static_cast<bool>(socket);
  }
  [[nodiscard]] call::SessionControl& control() const {
    return *reinterpret_cast<call::SessionControl*>(mapping.data());
  }
  // Gives the turn to the server, and wakes it if it sleeps, once, in whichever way it does.
  void give(call::Kind kind, std::uint32_t number, std::uint16_t size = 0,
            std::uint8_t flags = 0) const {
    control().slot.turn =
        call::Turn{.number = number, .kind = kind, .flags = flags, .size = size}.pack();
    WaitState& server = control().server;
    switch (server.parked.exchange(WaitState::kAwake)) {
      case WaitState::kOnFutex: wake_sleeper(server.parked); break;
      case WaitState::kOnBell:
        ++server.bell;
        wake_sleeper(server.bell);
        break;
      case WaitState::kOnDescriptor:
        (void)!::send(socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
      default: break;
    }
  }
  [[nodiscard]] call::Turn turn() const { return call::Turn::unpack(control().slot.turn.load()); }
  // Waits for the turn to be given back.
  [[nodiscard]] bool answered(std::uint32_t number,
                              std::chrono::milliseconds time = kPatience) const {
    return eventually([&] { return turn().number == number && turn().kind == call::Kind::reply; },
                      time);
  }
  // Whether the server has turned it out.
  [[nodiscard]] bool ended() const {
    pollfd end{.fd = answers.get(), .events = POLLRDHUP, .revents = 0};
    return ::poll(&end, 1, 0) == 1;
  }

  SharedMemory memory;
  Mapping mapping;
  UniqueFd answers;    // where the server says whether it takes the session, and sends all else
  UniqueFd other_end;  // as it was sent
  UniqueFd socket;     // where the server reads, once it is welcome
};

// Packets that mean nothing, or the wrong thing.
inline void send_nonsense(int socket, std::minstd_rand& random) {
  char bytes[64];
  for (char& byte : bytes) byte = static_cast<char>(random());
  switch (random() % 4) {
    case 0:
      (void)!::send(socket, bytes, 1 + random() % (sizeof bytes - 1), MSG_DONTWAIT | MSG_NOSIGNAL);
      break;
    case 1: (void)!::send(socket, bytes, 1, MSG_DONTWAIT | MSG_NOSIGNAL); break;
    default: {
      const SharedMemory memory = SharedMemory::create(1 + random() % 300'000);
      std::vector<int> fds(random() % 5, random() % 2 == 0 ? memory.fd() : STDERR_FILENO);
      if (random() % 8 == 0) fds.assign(255, STDERR_FILENO);
      // A full socket would make it wait; the other side takes what it can.
      int queued = 0;
      if (::ioctl(socket, SIOCOUTQ, &queued) == 0 && queued < 20'000)
        send_descriptors(socket, fds, static_cast<std::uint8_t>(random() % 24));
    }
  }
}

// Memory for long data, of any size, sent over a session's socket.
inline void send_memory(int socket, std::minstd_rand& random) {
  const std::size_t sizes[] = {1, 65'536, 131'072, 1'048'576, 3'000'000};
  const SharedMemory memory = SharedMemory::create(sizes[random() % 5], "transfer");
  int queued = 0;
  if (::ioctl(socket, SIOCOUTQ, &queued) == 0 && queued < 20'000)
    send_descriptors(socket, std::array{memory.fd()}, call::kPurposeData);
}

// What a server has of a session's sockets.
struct ServerEnds {
  UniqueFd mine;
  UniqueFd socket;  // where the client reads
};
// As a server: lets in who has asked for a session.
inline ServerEnds let_in(Packet& asked) {
  auto [mine, theirs] = packet_socket_pair();
  UniqueFd socket = std::move(asked.descriptors[1]);
  send_descriptors(socket.get(), std::array{theirs.get()}, 0, Deadline::now());
  return {.mine = std::move(mine), .socket = std::move(socket)};
}

// Writes something into a session's memory: whole turns in their likeness, or anything anywhere.
inline void scribble(call::SessionControl& control, std::minstd_rand& random, bool as_server) {
  const call::Turn seen = call::Turn::unpack(control.slot.turn.load());
  call::Turn turn{
      .number = random() % 4 == 0 ? static_cast<std::uint32_t>(random())
                                  : seen.number + (as_server ? 0U : 1U),
      .kind = static_cast<call::Kind>(random() % 7),
      .flags = random() % 3 == 0 ? static_cast<std::uint8_t>(0)
                                 : static_cast<std::uint8_t>(random() % 64),
      .size = static_cast<std::uint16_t>(random() % 8 == 0 ? random() : random() % 300)};
  if (as_server && random() % 2 == 0) turn.kind = call::Kind::reply;
  const std::uint64_t large = std::uint64_t{random()} << 33 ^ random();
  switch (random() % 9) {
    case 0: control.slot.turn = large; break;
    case 1:
    case 2:
    case 3: control.slot.turn = turn.pack(); break;
    case 4: {  // where data is said to be, and how much of it
      const std::uint64_t sizes[] = {0,          1,    40'000, 1 << 20, std::uint64_t{1} << 40,
                                     UINT64_MAX, large};
      std::memcpy(control.slot.data, &sizes[random() % 7], sizeof sizes[0]);
      break;
    }
    case 5:
      (as_server ? control.server : control.client).parked =
          static_cast<std::uint32_t>(random() % 5);
      break;
    case 6: control.slot.extra = random() % 2 == 0 ? static_cast<std::int64_t>(large) : 0; break;
    case 7: {
      auto* words = reinterpret_cast<std::atomic<std::uint64_t>*>(&control);
      words[random() % (call::kSessionBytes / 8)] = large;
      break;
    }
    default: control.terms.refusal = random() % 2 == 0 ? 1U : static_cast<std::uint32_t>(large);
  }
}

// A client's session in which nothing is as it should be. Throws SystemError where the server has
// hung up.
inline void open_a_bad_session(int port, std::minstd_rand& random) {
  RawSession session(port, random() % 16 != 0);
  if (random() % 4 != 0) (void)session.welcome();
  for (std::size_t i = random() % 300; i > 0; --i) {
    scribble(session.control(), random, false);
    if (random() % 6 == 0) send_nonsense(session.socket.get(), random);
    if (random() % 16 == 0) send_memory(session.socket.get(), random);
    if (random() % 3 == 0) (void)!::send(session.socket.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (random() % 16 == 0) pause_up_to(300, random);
  }
}

}  // namespace farcall::call::test
