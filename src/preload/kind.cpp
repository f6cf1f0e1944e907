// SPDX-License-Identifier: Apache-2.0
#include "preload/kind.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "preload/options.hpp"
#include "preload/packet.hpp"
#include "preload/real.hpp"
#include "preload/transfer.hpp"
#include "preload/unix_peers.hpp"

namespace farcall::preload {
namespace {

struct Ends {
  Endpoint own, peer;
};

bool ends_of(int fd, Ends& ends) noexcept {
  return address_of(SYS_getsockname, fd, ends.own) && address_of(SYS_getpeername, fd, ends.peer);
}

// An abstract name put together.
class Name {
 public:
  Name(sockaddr_un& name, const char* prefix) noexcept : name_(name), to_(name.sun_path) {
    name.sun_family = AF_UNIX;
    *to_++ = '\0';
    while (*prefix != '\0') *to_++ = *prefix++;
  }
  void put(std::uint64_t number, int digits) noexcept {
    constexpr const char* kDigits = "0123456789abcdef";
    for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4)
      *to_++ = kDigits[number >> shift & 15];
  }
  void put(const Endpoint& endpoint) noexcept {
    for (const std::uint8_t byte : endpoint.address) put(byte, 2);
    put(endpoint.port, 4);
  }
  [[nodiscard]] socklen_t length() const noexcept {
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                  static_cast<std::size_t>(to_ - name_.sun_path));
  }

 private:
  sockaddr_un& name_;
  char* to_;
};

int tcp_meeting_name(int fd, bool connector, sockaddr_un& name, socklen_t& length) noexcept {
  Ends ends{};
  if (!ends_of(fd, ends)) return -ENOTCONN;
  Name made(name, "farcall/tcp/");
  made.put(connector ? ends.own : ends.peer);
  made.put(connector ? ends.peer : ends.own);
  length = made.length();
  return 0;
}

// Numbers of sockets are the machine's.
int unix_meeting_name(int fd, const Side& side, sockaddr_un& name, socklen_t& length) noexcept {
  std::uint32_t connecting = 0;
  int result = 0;
  if (side.connector)
    connecting = await_unix_peer(fd, side);
  else
    result = number_of_unix_peer(fd, side, connecting);
  if (connecting == 0) return result != 0 ? result : -ENOTCONN;
  Name made(name, "farcall/unix/");
  made.put(connecting, 16);
  length = made.length();
  return 0;
}

// What the kernel has counted of a connection; the structure of the C library is older.
struct Counted {
  std::uint8_t state;
  char before[119];
  std::uint64_t bytes_acked, bytes_received;
  std::uint32_t segments_out, segments_in, not_sent, min_rtt, data_segments_in, data_segments_out;
  std::uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
  std::uint32_t delivered, delivered_ce;
  std::uint64_t bytes_sent, bytes_retransmitted;
};
static_assert(offsetof(Counted, bytes_received) == 128 && offsetof(Counted, bytes_sent) == 200);

bool ask_counts(int fd, Counted& counted) noexcept {
  socklen_t size = sizeof counted;
  return kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &counted, &size) == 0 &&
         size == sizeof counted;
}

Agreement compare_tcp_offsets(int fd, Side& side) noexcept {
  const OwnCounts own = own_counts(side);
  Counted before{};
  Counted after{};
  int queued = 0;
  if (!ask_counts(fd, before) || kernel(SYS_ioctl, fd, FIONREAD, &queued) < 0 ||
      !ask_counts(fd, after))
    return Agreement::differ;
  constexpr std::uint8_t kEstablished = 1;
  if (after.state != kEstablished) return Agreement::ending;
  if (!(own_counts(side) == own)) return Agreement::moving;
  if (!own.receiving) {
    if (before.bytes_received != after.bytes_received) return Agreement::moving;
    if (after.bytes_received != own.received + static_cast<std::uint64_t>(queued))
      return Agreement::differ;
  }
  const std::uint64_t sent = after.bytes_sent - after.bytes_retransmitted + after.not_sent;
  return own.sending || sent == own.sent ? Agreement::agree : Agreement::differ;
}

struct Option {
  int level, name, usual;
};

template <std::size_t Count>
bool are_usual(int fd, const Option (&options)[Count]) noexcept {
  for (const Option& option : options) {
    int value = option.usual;
    socklen_t size = sizeof value;
    kernel(SYS_getsockopt, fd, option.level, option.name, &value, &size);
    if (value != option.usual) return false;
  }
  return true;
}

// A protocol above TCP, such as the kernel's TLS.
bool has_upper_protocol(int fd) noexcept {
  char protocol[16] = {};
  socklen_t size = sizeof protocol;
  return kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_ULP, protocol, &size) == 0 && size != 0;
}

// Filters say which messages come, and how much of them.
bool has_filter(int fd) noexcept {
  socklen_t size = 0;
  return kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_GET_FILTER, nullptr, &size) != 0 || size != 0;
}

// How much of what this end has sent its peer has not taken. As long as there is any it is charged
// to this socket, so most of the time nobody has to look for the other. EAGAIN: somebody has to.
long unread_there(int fd, const Side& side, bool may_look) noexcept {
  int charged = 0;
  if (kernel(SYS_ioctl, fd, SIOCOUTQ, &charged) == 0 && charged == 0) return 0;
  return may_look ? queued_at_unix_peer(fd, side) : -EAGAIN;
}

}  // namespace

OwnCounts own_counts(Side& side) noexcept {
  const Guard receiving(side.receive_lock);
  const Guard sending(side.send_lock);
  const bool messages = side.has_messages();
  return {.sent = messages ? side.sender.message_bytes() : side.sender.kernel_sent(),
          .received = messages ? side.receiver.message_bytes() : side.receiver.kernel_taken(),
          .sending = side.sender.busy(),
          .receiving = side.receiver.busy()};
}

int meeting_name(int fd, const Side& side, sockaddr_un& name, socklen_t& length) noexcept {
  return side.kind == Kind::tcp ? tcp_meeting_name(fd, side.connector, name, length)
                                : unix_meeting_name(fd, side, name, length);
}

int find_peer(int fd, const Side& side, FoundSocket& found) noexcept {
  if (is_unix(side.kind)) return find_unix_peer_of(fd, side, found);
  Ends ends{};
  return ends_of(fd, ends) ? find_socket(ends.peer, ends.own, found) : -ENOTCONN;
}

Agreement compare_offsets(int fd, Side& side) noexcept {
  return side.kind == Kind::tcp ? compare_tcp_offsets(fd, side) : Agreement::agree;
}

// What one end has sent and the other has not taken is what lies in the queue between them.
Agreement compare_with_peer(int fd, Side& side, const Direction& in,
                            const Direction& out) noexcept {
  if (side.kind == Kind::tcp) return Agreement::agree;
  // Of packets the kernel tells how many bytes wait, not how many messages.
  const std::atomic<std::uint64_t>& sent_there =
      side.has_messages() ? in.message_bytes_sent : in.kernel_sent;
  const std::atomic<std::uint64_t>& taken_there =
      side.has_messages() ? out.message_bytes_taken : out.kernel_taken;
  constexpr int kWaits = 4;
  constexpr int kLooks = 50;
  Agreement agreement = Agreement::differ;
  for (int i = 0; i < kLooks && agreement != Agreement::agree; ++i) {
    const OwnCounts own = own_counts(side);
    const std::uint64_t sent = sent_there.load(std::memory_order_acquire);
    const bool sending = in.kernel_sending.load(std::memory_order_acquire) != 0;
    const std::uint64_t taken = taken_there.load(std::memory_order_acquire);
    const long queued = kernel_queued(fd);
    const long unread = unread_there(fd, side, i >= kWaits);
    if (queued < 0 || (unread < 0 && unread != -EAGAIN)) return Agreement::ending;
    if (!(own_counts(side) == own) || sent_there.load(std::memory_order_acquire) != sent ||
        taken_there.load(std::memory_order_acquire) != taken || unread < 0) {
      agreement = Agreement::moving;
      kernel(SYS_sched_yield);
      continue;
    }
    const std::uint64_t here = own.received + static_cast<std::uint64_t>(queued);
    const bool in_agrees = own.receiving || here == sent || (sending && here > sent);
    const bool out_agrees = own.sending || taken + static_cast<std::uint64_t>(unread) == own.sent;
    agreement = in_agrees && out_agrees ? Agreement::agree : Agreement::differ;
    if (agreement == Agreement::differ) kernel(SYS_sched_yield);  // it may be about to say so
  }
  return agreement;
}

std::size_t most_in_all(int fd) noexcept {
  // What the kernel takes may go beyond its limit by one piece; and it counts its own memory for
  // them, too, which is little beside long ones.
  constexpr std::size_t kLastPiece = std::size_t{64} << 10;
  const std::size_t room = send_room_of(fd);
  return room <= kLastPiece ? 0 : (room - kLastPiece) / 8 * 7;
}

// What the kernel takes of a unix stream is little, and all that is in the ring may have to go
// there at once beside what it has already, see RoomForAll. Of TCP the sender sees to it, who knows
// what it takes; a ring that could never be full would only spread over more memory.
std::size_t ring_bytes_of(int fd, Kind kind) noexcept {
  constexpr std::size_t kLeast = 4096;
  constexpr std::size_t kMostOfUnix = std::size_t{128} << 10;
  const std::size_t most =
      kind == Kind::tcp ? std::max(std::bit_ceil(most_in_all(fd)), kLeast) : kMostOfUnix;
  return std::min(settings().ring_bytes, most);
}

bool has_ordinary_options(int fd, Kind kind) noexcept {
  constexpr Option kAnyStream[] = {{SOL_SOCKET, SO_RCVLOWAT, 1}, {SOL_SOCKET, SO_PEEK_OFF, -1}};
  constexpr Option kTcp[] = {{SOL_SOCKET, SO_TIMESTAMP, 0},       {SOL_SOCKET, SO_TIMESTAMPNS, 0},
                             {SOL_SOCKET, SO_TIMESTAMPING, 0},    {SOL_SOCKET, SO_ZEROCOPY, 0},
                             {IPPROTO_TCP, TCP_INQ, 0},           {IPPROTO_TCP, TCP_CORK, 0},
                             {SOL_SOCKET, SO_MAX_PACING_RATE, -1}};
  constexpr Option kUnix[] = {{SOL_SOCKET, SO_PASSCRED, 0},
                              {SOL_SOCKET, SO_PASSSEC, 0},
                              {SOL_SOCKET, SO_PASSPIDFD, 0},
                              {SOL_SOCKET, SO_INQ, 0}};
  constexpr Option kMessages[] = {{SOL_SOCKET, SO_TIMESTAMP, 0},
                                  {SOL_SOCKET, SO_TIMESTAMPNS, 0},
                                  {SOL_SOCKET, SO_TIMESTAMPING, 0},
                                  {SOL_SOCKET, SO_RXQ_OVFL, 0}};
  if (!are_usual(fd, kAnyStream)) return false;
  if (kind == Kind::tcp ? !are_usual(fd, kTcp) || has_upper_protocol(fd) : !are_usual(fd, kUnix))
    return false;
  if (kind == Kind::unix_packets && (!are_usual(fd, kMessages) || has_filter(fd))) return false;
  const long flags = kernel(SYS_fcntl, fd, F_GETFL, 0);
  return flags >= 0 && (flags & O_ASYNC) == 0;
}

}  // namespace farcall::preload
