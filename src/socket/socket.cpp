// SPDX-License-Identifier: Apache-2.0
#include "farcall/socket.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "farcall/error.hpp"
#include "process/identity.hpp"
#include "socket/acceptor.hpp"
#include "socket/doorbells.hpp"
#include "socket/strangers.hpp"
#include "socket/wait_for.hpp"
#include "wait/held_signals.hpp"

namespace farcall {

bool wait_for(int fd, short events, Deadline deadline, std::optional<SignalCount> since) {
  for (;;) {
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const timespec left = deadline.left();
    std::optional<HeldSignals> held;
    if (since) {
      held.emplace();
      if (SignalCount::now() != *since) throw SystemError(EINTR, "poll");
    }
    const int count =
        ::ppoll(&entry, 1, deadline.is_never() ? nullptr : &left, held ? held->before() : nullptr);
    if (count > 0) return true;
    if (count == 0) return false;
    if (errno != EINTR || since) throw_errno("poll");
  }
}

namespace {

struct FdMessageHeader {
  static constexpr std::uint32_t kMagic = 0x6c637266;
  std::uint32_t magic;
  std::uint16_t bytes;
  std::uint16_t descriptors;
};

struct PacketHeader {
  static constexpr std::uint32_t kMagic = 0x70637266;
  std::uint32_t magic;
  std::uint8_t purpose;
  std::uint8_t more;
  std::uint16_t descriptors;
};

#ifndef SCM_PIDFD
constexpr int SCM_PIDFD = 4;
#endif

// What goes with the bytes of a message: credentials, descriptors. In the order in which they are
// added; at most once each.
template <std::size_t Descriptors>
class Ancillary {
 public:
  // With room for what nobody has asked for, too: a security label, a pidfd.
  Ancillary() noexcept { message_.msg_control = buffer_.data(); }

  msghdr& message(std::span<iovec> pieces) noexcept {
    message_.msg_iov = pieces.data();
    message_.msg_iovlen = pieces.size();
    return message_;
  }
  void add(const Credentials& credentials) noexcept {
    const ucred who{.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
    add(SCM_CREDENTIALS, &who, sizeof who);
  }
  void add(std::span<const int> descriptors) noexcept {
    if (!descriptors.empty()) add(SCM_RIGHTS, descriptors.data(), descriptors.size_bytes());
  }
  void prepare_to_receive() noexcept { message_.msg_controllen = buffer_.size(); }
  // With room for the sender, so many descriptors, and not much beside them; or for the sender
  // alone.
  void prepare_to_receive(std::size_t descriptors) noexcept {
    message_.msg_controllen = CMSG_SPACE(sizeof(ucred));
    if (descriptors != 0)
      message_.msg_controllen += CMSG_LEN((descriptors + kUnaskedDescriptors) * sizeof(int));
  }

  // Takes over the descriptors that came. Returns how many control messages of other kinds did.
  unsigned collect(ReceivedFds& into, std::optional<Credentials>& sender) {
    unsigned others = 0;
    // Closed here: the last close of a pidfd waits for nobody.
    std::vector<UniqueFd> pidfds;
    // All of them, before anything that can fail.
    for (cmsghdr* item = CMSG_FIRSTHDR(&message_); item != nullptr;
         item = CMSG_NXTHDR(&message_, item)) {
      const int type = item->cmsg_level == SOL_SOCKET ? item->cmsg_type : 0;
      if (type == SCM_RIGHTS) {
        take(*item, into);
      } else if (type == SCM_CREDENTIALS) {
        ucred who{};
        std::memcpy(&who, CMSG_DATA(item), sizeof who);
        sender = Credentials{.pid = who.pid, .uid = who.uid, .gid = who.gid};
      } else {
        ++others;
        if (type == SCM_PIDFD) take(*item, pidfds);
      }
    }
    if (sender) into.sent_by(sender->uid);
    return others;
  }

 private:
  void add(int type, const void* data, std::size_t size) noexcept {
    auto* item = reinterpret_cast<cmsghdr*>(buffer_.data() + message_.msg_controllen);
    message_.msg_controllen += CMSG_SPACE(size);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = type;
    item->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(item), data, size);
  }
  template <class Fds>
  static void take(const cmsghdr& item, Fds& into) {
    const std::size_t count = (item.cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(&item) + i * sizeof fd, sizeof fd);
      into.emplace_back(fd);
    }
  }

  static constexpr std::size_t kOther = 512;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred)) +
                                        CMSG_SPACE(Descriptors * sizeof(int)) + kOther> buffer_;
  msghdr message_{};
};

std::pair<UniqueFd, UniqueFd> connected_pair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

std::uint64_t socket_cookie(int fd) noexcept {
  std::uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return ::getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

std::pair<UniqueFd, UniqueFd> socket_pair() { return connected_pair(SOCK_STREAM); }

std::pair<UniqueFd, UniqueFd> packet_socket_pair() { return connected_pair(SOCK_SEQPACKET); }

void send_fd_message(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors,
                     Deadline deadline) {
  if (bytes.size() > kFdMessageBytes || descriptors.size() > kFdMessageDescriptors)
    throw MisuseError("message too large");
  FdMessageHeader header{.magic = FdMessageHeader::kMagic,
                         .bytes = static_cast<std::uint16_t>(bytes.size()),
                         .descriptors = static_cast<std::uint16_t>(descriptors.size())};
  std::array<iovec, 2> pieces{
      iovec{.iov_base = &header, .iov_len = sizeof header},
      iovec{.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()}};
  Ancillary<kFdMessageDescriptors> ancillary;
  ancillary.add(descriptors);
  const msghdr& message = ancillary.message(pieces);
  const int flags = MSG_NOSIGNAL | (deadline.is_never() ? 0 : MSG_DONTWAIT);
  ssize_t sent = 0;
  while ((sent = ::sendmsg(socket, &message, flags)) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN || deadline.is_never()) throw_errno("send a message");
    if (!wait_for(socket, POLLOUT, deadline)) throw SystemError(ETIMEDOUT, "send a message");
  }
  // It is far smaller than a socket's buffer; one that waits takes it whole.
  if (static_cast<std::size_t>(sent) != sizeof header + bytes.size())
    throw SystemError(EPROTO, "message was cut short");
}

void send_fd_message(int socket, const FdMessage& fd_message, Deadline deadline) {
  std::vector<int> numbers;
  for (const UniqueFd& fd : fd_message.descriptors) numbers.push_back(fd.get());
  send_fd_message(socket, fd_message.bytes, numbers, deadline);
}

namespace {

// Receives some of `bytes` from a stream, with what descriptors come there, and tells of those that
// do not fit. Returns how many bytes came; 0 at the end. Throws SystemError.
std::size_t receive_some(int socket, std::span<std::byte> bytes, ReceivedFds& descriptors,
                         bool& overflow, Deadline deadline, std::optional<SignalCount> since) {
  iovec piece{.iov_base = bytes.data(), .iov_len = bytes.size()};
  Ancillary<kFdMessageDescriptors> ancillary;
  ancillary.prepare_to_receive();
  msghdr& message = ancillary.message(std::span(&piece, 1));
  ssize_t count = 0;
  do {
    if (!wait_for(socket, POLLIN, deadline, since))
      throw SystemError(ETIMEDOUT, "receive a message");
    count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (count < 0 && (errno == EINTR || errno == EAGAIN));
  if (count < 0) throw_errno("receive a message");
  std::optional<Credentials> sender;
  ancillary.collect(descriptors, sender);
  overflow |= (message.msg_flags & MSG_CTRUNC) != 0;
  return static_cast<std::size_t>(count);
}

}  // namespace

std::optional<FdMessage> receive_fd_message(int socket, Deadline deadline,
                                            std::optional<SignalCount> since) {
  take_out_of_band_as_well(socket);
  FdMessageHeader header{};
  ReceivedFds descriptors;
  descriptors.sent_by(peer_credentials(socket).uid);
  bool overflow = false;
  const std::size_t count = receive_some(socket, std::as_writable_bytes(std::span(&header, 1)),
                                         descriptors, overflow, deadline, since);
  if (count == 0) return std::nullopt;
  const auto check = [&](bool proper) {
    if (!proper) throw SystemError(EPROTO, "receive a message: the peer sent something else");
  };
  check(count == sizeof header && header.magic == FdMessageHeader::kMagic &&
        header.bytes <= kFdMessageBytes && header.descriptors <= kFdMessageDescriptors &&
        descriptors.size() <= header.descriptors);
  FdMessage fd_message;
  fd_message.bytes.resize(header.bytes);
  for (std::span<std::byte> left = fd_message.bytes; !left.empty();) {
    // With room for descriptors: the kernel would let go here those that there is no room for.
    const std::size_t got = receive_some(socket, left, descriptors, overflow, deadline, since);
    if (got == 0) throw SystemError(ECONNRESET, "receive a message: the peer closed in the middle");
    left = left.subspan(got);
    check(descriptors.size() <= header.descriptors);  // at once: each byte may bring a hundred
  }
  if (overflow && descriptors.size() < header.descriptors)
    throw SystemError(EMFILE, "receive a message: this process has no room for its descriptors");
  check(header.descriptors == descriptors.size() && !overflow);
  fd_message.descriptors = std::move(descriptors);
  return fd_message;
}

namespace {

void send_packet(int packet_socket, std::span<const int> descriptors, const Credentials& self,
                 std::uint8_t purpose, bool more, Deadline deadline,
                 std::optional<SignalCount> since) {
  PacketHeader header{.magic = PacketHeader::kMagic,
                      .purpose = purpose,
                      .more = static_cast<std::uint8_t>(more),
                      .descriptors = static_cast<std::uint16_t>(descriptors.size())};
  iovec piece{.iov_base = &header, .iov_len = sizeof header};
  Ancillary<kPacketDescriptors> ancillary;
  ancillary.add(self);
  ancillary.add(descriptors);
  // Where this process's ids have no numbers in its user namespace it cannot name them; the kernel
  // says who it is all the same.
  Ancillary<kPacketDescriptors> nameless;
  nameless.add(descriptors);
  const msghdr* message = &ancillary.message(std::span(&piece, 1));
  bool unnamed = process::is_overflow_id(self.uid) || process::is_overflow_id(self.gid);
  for (;;) {
    if (::sendmsg(packet_socket, message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return;
    if (errno == EINTR) continue;
    if (errno == EINVAL && unnamed) {
      message = &nameless.message(std::span(&piece, 1));
      unnamed = false;
      continue;
    }
    if (errno != EAGAIN) throw_errno("send descriptors");
    if (!wait_for(packet_socket, POLLOUT, deadline, since))
      throw SystemError(ETIMEDOUT, "send descriptors");
  }
}

Credentials effective() noexcept {
  return {.pid = ::getpid(), .uid = ::geteuid(), .gid = ::getegid()};
}

// No bytes mean the end, or a packet that holds none.
bool at_end(int packet_socket) {
  return (events_now(packet_socket, POLLRDHUP) & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace

void send_descriptors(int packet_socket, std::span<const int> descriptors, std::uint8_t purpose,
                      Deadline deadline, std::optional<SignalCount> since) {
  for (;;) {
    const bool more = descriptors.size() > kPacketDescriptors;
    const auto now = descriptors.first(more ? kPacketDescriptors : descriptors.size());
    send_packet(packet_socket, now, effective(), purpose, more, deadline, since);
    if (!more) return;
    descriptors = descriptors.subspan(now.size());
  }
}

void send_credentials(int packet_socket, const Credentials& claimed, std::uint8_t purpose) {
  send_packet(packet_socket, {}, claimed, purpose, false, Deadline::now(), std::nullopt);
}

namespace {

// Receives into `piece`. Returns recvmsg's flags and how many bytes came; less than 0: the kind of
// the packet says why.
struct Received {
  ssize_t count;
  int flags;
};
Received receive_packet(int packet_socket, iovec piece, Packet& packet,
                        std::optional<std::size_t> room = std::nullopt, int peek = 0) {
  Ancillary<kPacketDescriptors> ancillary;
  if (room)
    ancillary.prepare_to_receive(*room);
  else
    ancillary.prepare_to_receive();
  msghdr& message = ancillary.message(std::span(&piece, 1));
  ssize_t count = 0;
  // Not recvmsg(2), which the C library makes a point of cancellation.
  do
    count = ::syscall(SYS_recvmsg, packet_socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | peek);
  while (count < 0 && errno == EINTR);
  if (count < 0 && errno == ECONNRESET) packet.kind = Packet::Kind::closed;
  if (count < 0 && errno != EAGAIN && errno != ECONNRESET) throw_errno("take a packet");
  if (count < 0) return {count, 0};
  packet.unsolicited = ancillary.collect(packet.descriptors, packet.sender);
  packet.kind = count == 0 && at_end(packet_socket) ? Packet::Kind::closed : Packet::Kind::garbage;
  return {count, message.msg_flags};
}

// Returns whether all has come that the packet brings.
bool receive_packet_of_ours(int packet_socket, Packet& packet,
                            std::optional<std::size_t> room = std::nullopt, int peek = 0) {
  PacketHeader header{};
  const auto [count, flags] = receive_packet(
      packet_socket, {.iov_base = &header, .iov_len = sizeof header}, packet, room, peek);
  if (count < 0) return true;
  using Kind = Packet::Kind;
  const bool proper = count == sizeof header && (flags & MSG_TRUNC) == 0 &&
                      header.magic == PacketHeader::kMagic && header.more <= 1;
  if (count == 1 && packet.descriptors.empty()) {
    packet.kind = Kind::doorbell;
  } else if (proper && (flags & MSG_CTRUNC) != 0) {
    // Nobody can send more than there is room for in `control`; so it is our table that is full, or
    // less room was given than they take.
    if (!room || packet.descriptors.size() < header.descriptors) packet.kind = Kind::overflow;
  } else if (proper && header.descriptors == packet.descriptors.size()) {
    packet.kind = Kind::descriptors;
  }
  if (proper) {
    packet.purpose = header.purpose;
    packet.more = header.more != 0;
  }
  return (flags & MSG_CTRUNC) == 0;
}

}  // namespace

Packet take_packet(int packet_socket) {
  Packet packet;
  receive_packet_of_ours(packet_socket, packet);
  return packet;
}

Packet take_strangers_packet(int packet_socket, const Next& next, std::size_t most,
                             ReceivedFds into) {
  Packet packet;
  packet.descriptors = std::move(into);
  if (next.kind != Packet::Kind::garbage) {
    packet.kind = next.kind;
  } else if (!next.descriptors) {
    receive_packet_of_ours(packet_socket, packet, 0);
  } else if (next.claimed > most) {
    packet.kind = Packet::Kind::garbage;
    packet.stays = true;
  } else {
    packet.stays = !receive_packet_of_ours(packet_socket, packet,
                                           std::max<std::size_t>(next.claimed, 1), MSG_PEEK);
    if (!packet.stays && packet.kind != Packet::Kind::nothing) drop_next(packet_socket);
  }
  return packet;
}

bool drop_next(int packet_socket) noexcept {
  PacketHeader header{};
  // Not recv(2), which the C library makes a point of cancellation.
  long count = 0;
  do
    count = ::syscall(SYS_recvfrom, packet_socket, &header, sizeof header, MSG_DONTWAIT, nullptr,
                      nullptr);
  while (count < 0 && errno == EINTR);
  return count == sizeof header && header.magic == PacketHeader::kMagic && header.more != 0;
}

void drop_next_set(int packet_socket) noexcept {
  constexpr int kMost = 64;  // of one that is sent in earnest there are fewer
  for (int i = 0; i < kMost && drop_next(packet_socket); ++i) {
  }
}

Next look_at_next(int packet_socket, bool tells_sender) noexcept {
  PacketHeader header{};
  iovec piece{.iov_base = &header, .iov_len = sizeof header};
  Ancillary<0> ancillary;
  // Where no sender is told, descriptors would have that room.
  if (tells_sender) ancillary.prepare_to_receive(0);
  msghdr& message = ancillary.message(std::span(&piece, 1));
  Next next;
  // Not recvmsg(2), which the C library makes a point of cancellation.
  long count = 0;
  do
    count =
        ::syscall(SYS_recvmsg, packet_socket, &message, MSG_PEEK | MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  while (count < 0 && errno == EINTR);
  if (count < 0) {
    // A reset is told once.
    if (errno != EAGAIN) next.kind = Packet::Kind::closed;
    return next;
  }
  next.kind = Packet::Kind::garbage;
  ReceivedFds none;
  std::optional<Credentials> sender;
  (void)ancillary.collect(none, sender);
  if (sender) next.sender = sender->uid;
  next.descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
  if (header.magic == PacketHeader::kMagic) next.claimed = header.descriptors;
  return next;
}

bool descriptors_come_next(int packet_socket) noexcept {
  PacketHeader header{};
  // Not recv(2), which the C library makes a point of cancellation.
  return ::syscall(SYS_recvfrom, packet_socket, &header, sizeof header, MSG_PEEK | MSG_DONTWAIT,
                   nullptr, nullptr) == sizeof header &&
         header.magic == PacketHeader::kMagic && header.descriptors != 0;
}

Packet take_content(int packet_socket, std::span<std::byte> content) {
  Packet packet;
  const auto [count, flags] = receive_packet(
      packet_socket, {.iov_base = content.data(), .iov_len = content.size()}, packet);
  if (count == static_cast<ssize_t>(content.size()) && (flags & MSG_TRUNC) == 0)
    packet.kind = Packet::Kind::content;
  return packet;
}

}  // namespace farcall
