// SPDX-License-Identifier: Apache-2.0
//
// Sockets for pulses asked for by hand, so that every bit can be wrong.
#pragma once

#include "call/raw.hpp"
#include "message/shared.hpp"

namespace farcall::message::test {

// What a process shares with a channel for its pulses. Throws SystemError where it has gone.
struct RawPulses {
  explicit RawPulses(int connection) : RawPulses(connection, packet_socket_pair()) {}
  // Also with a pair of sockets that is no such pair.
  RawPulses(int connection, std::pair<UniqueFd, UniqueFd> ends)
      : memory(SharedMemory::create(sizeof(PulsePage))),
        mapping(memory.map()),
        answers(std::move(ends.first)) {
    send_descriptors(connection, std::array{memory.fd(), ends.second.get()}, kPurposePulses,
                     Deadline::now());
  }
  // Whether there is a socket.
  bool welcome() {
    pollfd answer{.fd = answers.get(), .events = POLLIN, .revents = 0};
    if (::poll(&answer, 1, static_cast<int>(call::test::kPatience.count())) != 1) return false;
    socket = call::test::take_only_descriptor(answers.get());
    return static_cast<bool>(socket);
  }
  [[nodiscard]] PulsePage& page() const { return *reinterpret_cast<PulsePage*>(mapping.data()); }

  SharedMemory memory;
  Mapping mapping;
  UniqueFd answers;
  UniqueFd socket;
};

inline PulsePacket pulse_packet(std::int32_t code, std::uint32_t priority = 1, pid_t thread = 0) {
  return {.magic = PulsePacket::kMagic,
          .code = code,
          .value = code,
          .priority = priority,
          .thread = static_cast<std::uint32_t>(thread)};
}

}  // namespace farcall::message::test
