// SPDX-License-Identifier: Apache-2.0
//
// Who is at the other end: connected unix sockets, names without files, descriptors in transit.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "farcall/memory.hpp"
#include "farcall/wait.hpp"

namespace farcall {

// The other end as the kernel saw it when the connection was made (SO_PEERCRED).
struct Credentials {
  pid_t pid;
  uid_t uid;
  gid_t gid;
};
// Throws SystemError.
Credentials peer_credentials(int socket);

// An address in the abstract namespace of unix sockets: private to the network namespace, gone with
// its last socket.
class AbstractAddress {
 public:
  static constexpr std::size_t kLongest = sizeof(sockaddr_un::sun_path) - 1;
  // Throws SystemError: EINVAL if the name is empty, ENAMETOOLONG if it is longer than kLongest.
  explicit AbstractAddress(std::string_view name);
  // What a socket is bound to, if that is such an address.
  static std::optional<AbstractAddress> of(int socket) noexcept;

  [[nodiscard]] std::string_view name() const noexcept;
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&address_);
  }
  [[nodiscard]] socklen_t size() const noexcept { return size_; }

 private:
  AbstractAddress() noexcept = default;
  sockaddr_un address_{};
  socklen_t size_ = 0;
};
// The kernel's number of a socket, the same for all descriptors of it; 0 for what is no socket.
std::uint64_t socket_cookie(int fd) noexcept;

// Descriptors that another process has sent. The last close of one may last as long as that process
// likes; so what nobody takes out of here is closed by threads that serve nobody, when it goes.
class ReceivedFds {
 public:
  ReceivedFds() noexcept = default;
  // `sender`: the user at whose expense they are closed.
  explicit ReceivedFds(std::vector<UniqueFd>&& fds, uid_t sender = kUnknown) noexcept
      : fds_(std::move(fds)), sender_(sender) {}
  ReceivedFds(ReceivedFds&& other) noexcept = default;
  ReceivedFds& operator=(ReceivedFds&& other) noexcept {
    if (this == &other) return *this;
    clear();
    fds_ = std::move(other.fds_);
    sender_ = other.sender_;
    return *this;
  }
  ~ReceivedFds() { clear(); }

  [[nodiscard]] bool empty() const noexcept { return fds_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return fds_.size(); }
  // Who moves from one has it, and all that its close may take.
  [[nodiscard]] UniqueFd& operator[](std::size_t which) noexcept { return fds_[which]; }
  [[nodiscard]] const UniqueFd& operator[](std::size_t which) const noexcept { return fds_[which]; }
  [[nodiscard]] auto begin() noexcept { return fds_.begin(); }
  [[nodiscard]] auto end() noexcept { return fds_.end(); }
  [[nodiscard]] auto begin() const noexcept { return fds_.begin(); }
  [[nodiscard]] auto end() const noexcept { return fds_.end(); }
  void reserve(std::size_t count) { fds_.reserve(count); }
  void emplace_back(int fd) { fds_.emplace_back(fd); }
  // All that has come after it: of the same sender.
  void append(ReceivedFds&& more);
  void sent_by(uid_t sender) noexcept { sender_ = sender; }
  // They are ordinary ones from now on.
  operator std::vector<UniqueFd>() && noexcept { return std::exchange(fds_, {}); }
  // Has them closed.
  void clear() noexcept {
    if (!fds_.empty()) hand_over();
  }

 private:
  // Nobody's number: not even root's descriptors would be closed here.
  static constexpr uid_t kUnknown = static_cast<uid_t>(-1);
  void hand_over() noexcept;

  std::vector<UniqueFd> fds_;
  uid_t sender_ = kUnknown;
};

// A pair of connected unix stream sockets, close-on-exec. Throws SystemError.
std::pair<UniqueFd, UniqueFd> socket_pair();

// What one process hands to another: a few bytes and a few descriptors.
struct FdMessage {
  std::vector<std::byte> bytes;
  std::vector<UniqueFd> descriptors;
};
inline constexpr std::size_t kFdMessageBytes = 4096;
inline constexpr std::size_t kFdMessageDescriptors = 16;

// Sends one over a stream socket in one piece; the descriptors stay the sender's. With a deadline
// it waits no longer for room, whatever kind of socket it is. Throws SystemError: EPIPE and
// ECONNRESET when the peer is gone, never SIGPIPE, and ETIMEDOUT after the deadline.
void send_fd_message(int socket, const FdMessage& fd_message,
                     Deadline deadline = Deadline::never());
void send_fd_message(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                     Deadline deadline = Deadline::never());
// Receives one, its descriptors close-on-exec; std::nullopt when the peer closed instead.
// Throws SystemError: ETIMEDOUT after the deadline, EPROTO for what is none, and EINTR where a
// signal has been caught after `since`.
std::optional<FdMessage> receive_fd_message(int socket, Deadline deadline,
                                            std::optional<SignalCount> since = std::nullopt);

// What a packet socket (SOCK_SEQPACKET) brought, one packet at a time, without waiting.
struct Packet {
  enum class Kind : std::uint8_t {
    nothing,
    doorbell,
    descriptors,
    overflow,  // descriptors that this process has no room for (EMFILE), but for the first of them
    content,   // of take_content()
    garbage,
    closed,
  };
  Kind kind = Kind::nothing;
  std::uint8_t purpose = 0;  // as the sender has said
  bool more = false;         // the next packet belongs to this one
  bool stays = false;        // in the socket, as not all that it brings has come
  ReceivedFds descriptors;
  // Where SO_PASSCRED is set: who sent this very packet, as the kernel has checked it.
  std::optional<Credentials> sender;
  unsigned unsolicited = 0;  // control messages beside these
};
inline constexpr std::size_t kPacketDescriptors = 250;  // the kernel's limit is 253
std::pair<UniqueFd, UniqueFd> packet_socket_pair();
// Sends descriptors, with this process's effective credentials, in as many packets as it takes.
// Waits where the socket is full. Throws SystemError as send_fd_message does, ETIMEDOUT after the
// deadline, and EINTR where it would wait and a signal has been caught after `since`.
void send_descriptors(int packet_socket, std::span<const int> descriptors, std::uint8_t purpose,
                      Deadline deadline, std::optional<SignalCount> since = std::nullopt);
// A peer that means well takes no longer to empty its socket.
inline constexpr auto kPeerPatience = std::chrono::seconds(2);
inline void send_descriptors(int packet_socket, std::span<const int> descriptors,
                             std::uint8_t purpose = 0) {
  send_descriptors(packet_socket, descriptors, purpose, Deadline::after(kPeerPatience));
}
// Sends a packet with no descriptors and other credentials than the effective ones; the kernel
// accepts those that this process could take on. Waits for nobody. Throws SystemError.
void send_credentials(int packet_socket, const Credentials& claimed, std::uint8_t purpose);
// Takes the next packet; its descriptors are close-on-exec, and may come whatever the kind is.
// Those that do not fit into the table the kernel lets go itself, on this thread. Throws
// SystemError.
Packet take_packet(int packet_socket);
// Whether the next packet brings descriptors, as it says. Takes nothing.
bool descriptors_come_next(int packet_socket) noexcept;
// As take_packet() for a socket on which one side sends packets of exactly `content.size()` bytes:
// the kind is `content`, nothing, closed or garbage.
Packet take_content(int packet_socket, std::span<std::byte> content);

// Connects a blocking stream socket. Throws SystemError: ETIMEDOUT where the listener's queue is
// still full at the deadline, ECONNREFUSED where nobody listens, and EINTR where a signal has been
// caught after `since`.
void connect_until(int socket, const AbstractAddress& address, Deadline deadline,
                   std::optional<SignalCount> since = std::nullopt);

// A name in the abstract namespace, private to the network namespace, gone with its last socket.
// Names are "farcall/UID/NAME", so that users do not meet by accident; who really answers is
// checked with peer_credentials: connect() accepts only its own user or root as server.
class NamedListener {
 public:
  // Throws SystemError: EADDRINUSE if the name is taken, EINVAL if it is empty or too long.
  explicit NamedListener(std::string_view name);
  // The next client of this user (others are turned away). Throws SystemError: ETIMEDOUT, and EINTR
  // where a signal has been caught after `since`.
  UniqueFd accept(Deadline deadline, std::optional<SignalCount> since = std::nullopt) const;
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }
  [[nodiscard]] UniqueFd release() && noexcept { return std::move(fd_); }

 private:
  UniqueFd fd_;
};
// Throws SystemError: ECONNREFUSED if nobody listens there by the deadline, ETIMEDOUT if who
// listens has no room for more by then, EPERM if the listener belongs to somebody else, EINTR where
// a signal has been caught after `since`.
UniqueFd connect_named(std::string_view name, Deadline deadline,
                       std::optional<SignalCount> since = std::nullopt);

}  // namespace farcall
