// SPDX-License-Identifier: Apache-2.0
#include "preload/upgrade.hpp"

#include <fcntl.h>
#include <linux/memfd.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>

#include "preload/diag.hpp"
#include "preload/log.hpp"
#include "preload/proof.hpp"
#include "preload/real.hpp"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif
#ifndef TCP_INQ
#define TCP_INQ 36
#endif

namespace farcall::preload {
namespace {

constexpr std::uint32_t kConnectorBegins = 4;
constexpr std::uint32_t kAcceptorBegins = 6;
constexpr std::uint32_t kConnectorGivesUp = 400;
constexpr std::uint32_t kAcceptorGivesUp = 600;
constexpr std::size_t kHeaderBytes = 2 * kDirectionBytes;

// What the accepting end leaves with the memory file.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x32504354'4C4C4143;  // "CALLTCP2"
  std::uint64_t magic;
  std::uint64_t acceptor_cookie;
  std::uint64_t connector_cookie;
  std::uint64_t ring_bytes;
};

// For tests: the number of calls after which an end begins, so that it does at the first.
std::uint32_t begins_after(std::uint32_t usual) noexcept {
  static constinit std::atomic<std::int32_t> forced{-1};
  std::int32_t value = forced.load(std::memory_order_relaxed);
  if (value < 0) {
    const char* text = std::getenv("FARCALL_TEST_UPGRADE_AFTER");
    value = text == nullptr ? 0 : std::atoi(text);
    forced.store(value, std::memory_order_relaxed);
  }
  return value > 0 ? static_cast<std::uint32_t>(value) : usual;
}

bool is_loopback(const Endpoint& endpoint) noexcept {
  static constexpr std::array<std::uint8_t, 16> kSix{0, 0, 0, 0, 0, 0, 0, 0,
                                                     0, 0, 0, 0, 0, 0, 0, 1};
  static constexpr std::uint8_t kMapped[13] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127};
  return endpoint.address == kSix ||
         std::memcmp(endpoint.address.data(), kMapped, sizeof kMapped) == 0;
}

// IPv4 or IPv6.
bool is_wildcard(const Endpoint& endpoint) noexcept {
  static constexpr std::array<std::uint8_t, 16> kSix{};
  static constexpr std::array<std::uint8_t, 16> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return endpoint.address == kSix || endpoint.address == kMapped;
}

char* put_hex(char* to, const Endpoint& endpoint) noexcept {
  constexpr const char* kDigits = "0123456789abcdef";
  for (const std::uint8_t byte : endpoint.address) {
    *to++ = kDigits[byte >> 4];
    *to++ = kDigits[byte & 15];
  }
  for (int shift = 12; shift >= 0; shift -= 4) *to++ = kDigits[endpoint.port >> shift & 15];
  return to;
}

socklen_t name_of(const Endpoint& connector, const Endpoint& acceptor, sockaddr_un& name) noexcept {
  name.sun_family = AF_UNIX;
  constexpr char kPrefix[] = "farcall/tcp/";
  char* to = name.sun_path;
  *to++ = '\0';
  std::memcpy(to, kPrefix, sizeof kPrefix - 1);
  to = put_hex(to + sizeof kPrefix - 1, connector);
  to = put_hex(to, acceptor);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                static_cast<std::size_t>(to - name.sun_path));
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

enum class Agreement : std::uint8_t { agree, differ, moving, ending };

// What the library has counted, and which halves no call is in the middle of.
struct Own {
  std::uint64_t sent, received;
  bool sending, receiving;

  bool operator==(const Own&) const noexcept = default;
};

Own own_counts(Side& side) noexcept {
  const Guard receiving(side.receive_lock);
  const Guard sending(side.send_lock);
  return {.sent = side.sender.kernel_sent(),
          .received = side.receiver.kernel_taken(),
          .sending = side.sender.busy(),
          .receiving = side.receiver.busy()};
}

// Whether all bytes that the program has sent or received went through the library, so that its
// offsets are the kernel's; as far as that can be seen while other threads use the connection.
Agreement compare_offsets(int fd, Side& side) noexcept {
  const Own own = own_counts(side);
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

// True if it was a candidate until now.
bool end_stage(Side& side) noexcept {
  std::uint32_t stage = side.stage.load(std::memory_order_relaxed);
  while (stage <= Side::kListening)
    if (side.stage.compare_exchange_weak(stage, Side::kNever)) {
      side.next_try.store(UINT32_MAX, std::memory_order_relaxed);
      return true;
    }
  return false;
}

// Holds `advancing`.
void give_up(int fd, Side& side, Reason reason) noexcept {
  // Whoever has ended it meanwhile has noted why.
  if (end_stage(side)) note_reason(side, reason);
  stop_listening(side);
  log(LogLevel::debug, "descriptor %d stays with the kernel (reason %d)", fd,
      static_cast<int>(reason));
}

// Options that a socket may have from the one that listened, or from a program that was executed
// before, see changes_the_stream().
bool has_ordinary_options(int fd) noexcept {
  struct Option {
    int level, name, usual;
  };
  constexpr Option kOptions[] = {{SOL_SOCKET, SO_RCVLOWAT, 1},    {SOL_SOCKET, SO_TIMESTAMP, 0},
                                 {SOL_SOCKET, SO_TIMESTAMPNS, 0}, {SOL_SOCKET, SO_TIMESTAMPING, 0},
                                 {SOL_SOCKET, SO_ZEROCOPY, 0},    {IPPROTO_TCP, TCP_INQ, 0},
                                 {IPPROTO_TCP, TCP_CORK, 0}};
  for (const Option& option : kOptions) {
    int value = option.usual;
    socklen_t size = sizeof value;
    kernel(SYS_getsockopt, fd, option.level, option.name, &value, &size);
    if (value != option.usual) return false;
  }
  char protocol[16] = {};
  socklen_t size = sizeof protocol;
  if (kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_ULP, protocol, &size) == 0 && size != 0)
    return false;
  const long flags = kernel(SYS_fcntl, fd, F_GETFL, 0);
  return flags >= 0 && (flags & O_ASYNC) == 0;
}

// Whether the connection may be joined now, when its peer is there; asked only then, for most
// connections that look for a peer find none.
bool is_sound(int fd, Side& side) noexcept {
  if (!in_own_process()) {
    // A copy of the process that holds it, of which that one knows nothing: what is mapped here
    // would not be mapped there.
    if (end_stage(side)) note_reason(side, Reason::shared);
    return false;
  }
  switch (compare_offsets(fd, side)) {
    case Agreement::agree: break;
    case Agreement::differ: give_up(fd, side, Reason::seen_too_late); return false;
    case Agreement::ending: give_up(fd, side, Reason::too_short); return false;
    case Agreement::moving: return false;  // the next time
  }
  if (has_ordinary_options(fd)) return true;
  give_up(fd, side, Reason::option);
  return false;
}

struct Ends {
  Endpoint own, peer;
};

bool ends_of(int fd, Ends& ends) noexcept {
  return address_of(SYS_getsockname, fd, ends.own) && address_of(SYS_getpeername, fd, ends.peer);
}

// Maps both directions and lets the side use them.
bool join(int fd, Side& side, int memory, std::size_t ring_bytes, bool fresh) noexcept {
  const std::size_t size = kHeaderBytes + 2 * ring_bytes;
  std::byte* const base = map_connection(size, memory);
  if (base == nullptr) return false;
  const auto ring = [&](std::size_t which) {
    return Ring{.control = reinterpret_cast<Direction*>(base + which * kDirectionBytes),
                .bytes = base + kHeaderBytes + which * ring_bytes,
                .size = ring_bytes};
  };
  if (fresh) {
    start_direction(*ring(0).control);
    start_direction(*ring(1).control);
  }
  const long flags = kernel(SYS_fcntl, fd, F_GETFL);
  side.nonblocking.store(flags >= 0 && (flags & O_NONBLOCK) != 0, std::memory_order_relaxed);
  const Guard receiving(side.receive_lock);
  const Guard sending(side.send_lock);
  // Somebody may have ended it just now, see end_candidacy().
  std::uint32_t stage = side.connector ? Side::kListening : Side::kCandidate;
  if (!side.stage.compare_exchange_strong(stage, Side::kJoined)) {
    kernel(SYS_munmap, base, size);
    return false;
  }
  side.own().mapping = base;
  side.own().mapped = size;
  // The first one carries what the connecting end sends.
  side.own().out = ring(side.connector ? 0 : 1);
  side.own().in = ring(side.connector ? 1 : 0);
  // An answer through the ring acknowledges nothing, so Nagle's algorithm would hold back what goes
  // through the kernel until the peer's acknowledgement is overdue.
  int nodelay = 0;
  socklen_t nodelay_size = sizeof nodelay;
  kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &nodelay_size);
  side.nodelay.store(nodelay != 0, std::memory_order_relaxed);
  nodelay = 1;
  kernel(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
  side.sender.publish(side.out());
  side.receiver.publish(side.in());
  // The end that came before this moment was no surprise either.
  if (side.finished.load(std::memory_order_relaxed)) {
    side.sender.leave_ring(side.out());
    side.out().control->sender_said.fetch_or(Direction::kFinished, std::memory_order_release);
  }
  side.out().control->sender_processor.store(this_processor(), std::memory_order_relaxed);
  side.in().control->receiver_processor.store(this_processor(), std::memory_order_relaxed);
  side.next_try.store(UINT32_MAX, std::memory_order_relaxed);
  if (side.own().counters != nullptr)
    side.own().counters->accelerated.fetch_add(1, std::memory_order_relaxed);
  log(LogLevel::debug, "descriptor %d is accelerated", fd);
  return true;
}

int create_memory(std::size_t size) noexcept {
  long fd =
      kernel(SYS_memfd_create, "farcall-tcp", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
  if (fd == -EINVAL) fd = kernel(SYS_memfd_create, "farcall-tcp", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return -1;
  // Not allocated now: most rings never fill, and the kernel sets no limit to such files.
  if (kernel(SYS_ftruncate, fd, size) < 0 || kernel(SYS_fcntl, fd, F_ADD_SEALS, kMemorySeals) < 0) {
    kernel(SYS_close, fd);
    return -1;
  }
  return static_cast<int>(fd);
}

void start_listening(int fd, Side& side) noexcept {
  Ends ends{};
  if (!ends_of(fd, ends)) return;  // not connected yet
  sockaddr_un name{};
  const socklen_t length = name_of(ends.own, ends.peer, name);
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return give_up(fd, side, Reason::no_memory);
  const int listener = make_private(static_cast<int>(made));
  if (kernel(SYS_bind, listener, &name, length) < 0 || kernel(SYS_listen, listener, 1) < 0) {
    close_private(listener);
    return give_up(fd, side, Reason::no_memory);
  }
  side.listener = listener;
  side.listener_owner = own_pid();
  std::uint32_t stage = Side::kCandidate;
  if (!side.stage.compare_exchange_strong(stage, Side::kListening)) stop_listening(side);
}

// Takes what the accepting end has left, if it has.
void take_memory(int fd, Side& side) noexcept {
  if (!is_private(side.listener)) return give_up(fd, side, Reason::no_memory);
  if (side.guest < 0) {
    const long accepted =
        kernel(SYS_accept4, side.listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) return;
    side.guest = make_private(static_cast<int>(accepted));
  }
  if (!is_sound(fd, side)) return;
  const int guest = side.guest;
  Hello hello{};
  Passed passed;
  ucred peer{};
  const bool trusted = peer_may_share(guest, peer);
  const long got = hear(guest, &hello, sizeof hello, passed);
  if (got == -EAGAIN && trusted) return;  // it is about to
  close_private(guest);
  side.guest = -1;
  if (!trusted || got < 0) return;  // somebody else; the right one may still come
  Ends ends{};
  FoundSocket found{};
  const bool proven = hello.magic == Hello::kMagic && hello.connector_cookie == cookie_of(fd) &&
                      ends_of(fd, ends) && find_socket(ends.peer, ends.own, found) == 0 &&
                      found.cookie == hello.acceptor_cookie;
  const std::uint64_t ring = hello.ring_bytes;
  const int memory = passed.fds[0];
  const bool sound =
      proven && is_sound_ring(ring) && is_sound_memory(memory, kHeaderBytes + 2 * ring);
  side.peer_pid = peer.pid;
  if (sound && count_accelerated()) {
    if (join(fd, side, memory, ring, false)) {
      stop_listening(side);
    } else {
      uncount_accelerated();
      give_up(fd, side, Reason::no_memory);
    }
  } else {
    give_up(fd, side, sound ? Reason::too_many : Reason::no_proof);
  }
}

// Leaves the memory file where the connecting end listens, if it does already.
void leave_memory(int fd, Side& side) noexcept {
  Ends ends{};
  if (!ends_of(fd, ends)) return give_up(fd, side, Reason::too_short);
  sockaddr_un name{};
  const socklen_t length = name_of(ends.peer, ends.own, name);
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return give_up(fd, side, Reason::no_memory);
  const int host = static_cast<int>(made);
  const auto leave = [&]() -> bool {
    if (kernel(SYS_connect, host, &name, length) < 0) return false;  // nobody there (yet)
    if (!is_sound(fd, side)) return false;
    ucred peer{};
    if (!peer_may_share(host, peer)) {
      give_up(fd, side, Reason::other_user);
      return false;
    }
    side.peer_pid = peer.pid;
    FoundSocket found{};
    if (find_socket(ends.peer, ends.own, found) != 0 || !may_share_with(found.uid)) {
      give_up(fd, side, Reason::no_proof);
      return false;
    }
    if (!count_accelerated()) {
      give_up(fd, side, Reason::too_many);
      return false;
    }
    const std::size_t ring = settings().ring_bytes;
    const int memory = create_memory(kHeaderBytes + 2 * ring);
    Hello hello{.magic = Hello::kMagic,
                .acceptor_cookie = cookie_of(fd),
                .connector_cookie = found.cookie,
                .ring_bytes = ring};
    // Mapped and begun before the other end can see it.
    const bool joined = memory >= 0 && join(fd, side, memory, ring, true) &&
                        tell(host, &hello, sizeof hello, &memory, 1);
    if (memory >= 0) kernel(SYS_close, memory);
    if (!joined && !side.accelerated()) {
      uncount_accelerated();
      give_up(fd, side, Reason::no_memory);
    }
    return joined;
  };
  leave();
  kernel(SYS_close, host);
}

}  // namespace

namespace {
constinit std::atomic<bool> refused{false};
}  // namespace

void no_more_candidates() noexcept { refused.store(true, std::memory_order_relaxed); }

bool acceleration_ended() noexcept { return refused.load(std::memory_order_relaxed); }

bool may_accelerate() noexcept {
  return settings().enabled && settings().tcp && !acceleration_ended();
}

void note_connection(int fd, const sockaddr* peer, bool connector) noexcept {
  Endpoint there{};
  if (!may_accelerate() || peer == nullptr || !Endpoint::from(peer, there)) return;
  // Who connects to no address in particular comes to this host.
  if (is_wildcard(there) && !address_of(SYS_getpeername, fd, there)) return;
  Endpoint here{};
  bool here_known = false;
  if (!is_loopback(there)) {
    here_known = address_of(SYS_getsockname, fd, here);
    if (!here_known || here.address != there.address) return;
  }
  if (connector) {
    int protocol = 0;
    socklen_t size = sizeof protocol;
    if (kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) < 0 ||
        protocol != IPPROTO_TCP)
      return;
  }
  if (stats_wanted() || settings().exclude.count != 0 || settings().accelerate.count != 0) {
    if (!here_known && !address_of(SYS_getsockname, fd, here)) return;
    Counters* counters = counters_for(Protocol::tcp, connector ? there : here);
    if (counters != nullptr) counters->connections.fetch_add(1, std::memory_order_relaxed);
    if (!settings().wants(here, there)) {
      if (counters != nullptr)
        counters->reasons[static_cast<std::size_t>(Reason::excluded)].fetch_add(1);
      return;
    }
    Side* side = make_side(connector);
    if (side == nullptr) return;
    side->own().counters = counters;
    side->next_try.store(begins_after(connector ? kConnectorBegins : kAcceptorBegins));
    return adopt(fd, *side);
  }
  Side* side = make_side(connector);
  if (side == nullptr) return;
  side->next_try.store(begins_after(connector ? kConnectorBegins : kAcceptorBegins),
                       std::memory_order_relaxed);
  adopt(fd, *side);
}

namespace {

void connector_step(int fd, Side& side, std::uint32_t calls) noexcept {
  if (side.stage.load(std::memory_order_relaxed) == Side::kListening) {
    if (side.listener_owner != own_pid())
      give_up(fd, side, Reason::shared);
    else
      take_memory(fd, side);
  } else {
    start_listening(fd, side);
  }
  if (side.stage.load(std::memory_order_relaxed) > Side::kListening) return;
  if (calls >= kConnectorGivesUp)
    give_up(fd, side, Reason::peer_plain);
  else
    side.next_try.store(calls + (calls < kAcceptorBegins ? 3
                                 : calls < 8             ? 1
                                                         : calls / 2),
                        std::memory_order_relaxed);
}

void acceptor_step(int fd, Side& side, std::uint32_t calls) noexcept {
  leave_memory(fd, side);
  if (side.stage.load(std::memory_order_relaxed) != Side::kCandidate) return;
  // A peer with the library is there when this end first looks, or soon after. Each look costs five
  // system calls, so for one without it there are few.
  if (calls >= kAcceptorGivesUp)
    give_up(fd, side, Reason::peer_plain);
  else
    side.next_try.store(2 * calls, std::memory_order_relaxed);
}

// Holds `advancing`.
void step(int fd, Side& side) noexcept {
  const std::uint32_t calls = side.calls.load(std::memory_order_relaxed);
  if (side.stage.load(std::memory_order_relaxed) > Side::kListening) return;
  if (side.processes.load(std::memory_order_relaxed) != 1) {
    // If the others close it, it may still be accelerated.
    if (calls >= kConnectorGivesUp)
      give_up(fd, side, Reason::shared);
    else
      side.next_try.store(calls + 8, std::memory_order_relaxed);
  } else if (side.corked.load(std::memory_order_relaxed)) {
    side.next_try.store(calls + 8, std::memory_order_relaxed);
  } else if (side.connector) {
    connector_step(fd, side, calls);
  } else {
    acceptor_step(fd, side, calls);
  }
}

}  // namespace

bool end_candidacy(Side& side) noexcept {
  if (!end_stage(side)) return false;
  // Who is taking a step closes the listener in the end.
  if (!side.advancing.exchange(true, std::memory_order_acquire)) {
    stop_listening(side);
    side.advancing.store(false, std::memory_order_release);
  }
  return true;
}

void take_next_step(int fd, Side& side) noexcept {
  const auto ended = [&] { return side.stage.load(std::memory_order_relaxed) == Side::kNever; };
  bool never = false;
  // Once more if it was ended between the last look and the release.
  do {
    if (side.advancing.exchange(true, std::memory_order_acquire)) return;
    step(fd, side);
    never = ended();
    if (never) stop_listening(side);
    side.advancing.store(false, std::memory_order_release);
  } while (!never && ended());
  // From now on it costs nothing.
  if (never && !stats_wanted() && in_own_process()) release(forget(fd));
}

}  // namespace farcall::preload
