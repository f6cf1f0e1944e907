// SPDX-License-Identifier: Apache-2.0
//
// How a process's pulses reach a channel: as packets in a socket that the channel's process has
// made. Who sends pulses never waits, so those that come before that socket go into a page.
//
//   client                                         server
//     branch:  page, one end of a pair  ------->   makes a socket, and sends one end of it back;
//     page:    the first pulses         ------->   says there that it takes no more of them
//     socket:  all others               ------->
#pragma once

#include <atomic>
#include <optional>

#include "call/client_session.hpp"

namespace farcall::message {

// What the page and the other socket are sent as, over a connection.
inline constexpr std::uint8_t kPurposePulses = kFirstOwnPurpose;

// A packet. Codes of programs are 0 and up; kUnblock asks to unblock the sender of a message.
// Whose thread `thread` is, is the process that has sent the packet.
struct PulsePacket {
  static constexpr std::uint32_t kMagic = 0x65736c70;
  static constexpr std::int32_t kUnblock = -2;
  std::uint32_t magic;
  std::int32_t code;
  std::int64_t value;  // kUnblock: see UnblockRequest
  std::uint32_t priority;
  std::uint32_t thread;
};
static_assert(sizeof(PulsePacket) == 24);

// Which message's sender wants to leave. It may lie in a socket until another message has the same
// origin, so it says which request of its session it is, too.
//   bits 0..23 the origin, 32..63 the request's number, or 0: one of an older version says none
struct UnblockRequest {
  std::uint32_t origin;
  std::uint32_t number;

  [[nodiscard]] std::int64_t pack() const noexcept {
    return static_cast<std::int64_t>(std::uint64_t{number} << 32 | origin);
  }
  static UnblockRequest unpack(std::int64_t value) noexcept {
    const auto word = static_cast<std::uint64_t>(value);
    return {.origin = static_cast<std::uint32_t>(word),
            .number = static_cast<std::uint32_t>(word >> 32)};
  }
};

struct PulsePage {
  static constexpr std::uint32_t kMost = 160;
  static constexpr std::uint32_t kTaken = UINT32_MAX;
  std::atomic<std::uint32_t> count;  // kTaken: by the server, whose socket has been sent before
  std::uint32_t unused;
  PulsePacket pulses[kMost];
};
static_assert(sizeof(PulsePage) == 8 + PulsePage::kMost * sizeof(PulsePacket));

// The client's half.
class PulseSender {
 public:
  // Asks the server for a socket, with the first pulse. Throws SystemError: EAGAIN where too many
  // have asked, or too much of that server's waits to be closed, ESRCH where the server has gone.
  PulseSender(int branch, const call::Maker& maker, const PulsePacket& first);
  ~PulseSender();
  // What it brings is taken for that of who has asked for it: not once this process is somebody
  // else.
  [[nodiscard]] bool is_own() const noexcept {
    return epoch_ == process::credentials_epoch() && is_here();
  }
  [[nodiscard]] bool is_here() const noexcept { return generation_ == process::generation(); }
  // 0, EAGAIN where too many wait, ESRCH where the server's process has ended, or why there is no
  // socket; none: nobody listens any more. By one thread at a time; allocates nothing. Throws
  // SystemError for all else.
  std::optional<int> send(int branch, const PulsePacket& packet);
  // The same, of several threads at a time, and in handlers. None also: it is for send().
  std::optional<int> send_at_once(const PulsePacket& packet) const noexcept;
  // From now on it is not used, but for threads that do already.
  void retire() noexcept;

  PulseSender* next = nullptr;  // for its owner

 private:
  enum class Added : std::uint8_t { yes, full, ended, taken };
  Added add(int branch, const PulsePacket& packet) noexcept;
  // 0, or an errno, or none.
  std::optional<int> take_socket();
  // A child may hold copies of its sockets, which do not hang up.
  [[nodiscard]] bool has_server_ended() const noexcept;
  void hang_up(process::PrivateFd& socket) const noexcept;
  void leave_answers() noexcept;
  [[nodiscard]] PulsePage& page() const noexcept {
    return *reinterpret_cast<PulsePage*>(page_.data());
  }

  const call::Maker maker_;
  const call::WatchedProcess server_;
  const std::uint64_t epoch_ = process::credentials_epoch();
  const std::uint64_t generation_ = process::generation();
  process::PrivateMapping page_;  // until there is a socket
  process::PrivateFd answers_;
  ReceivedFds room_;  // for what comes there
  process::PrivateFd socket_;
  std::atomic<bool> has_socket_{false};
};

}  // namespace farcall::message
