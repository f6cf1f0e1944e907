// SPDX-License-Identifier: Apache-2.0
#include "preload/upgrade.hpp"

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>

#include "preload/close_apart.hpp"
#include "preload/connection.hpp"
#include "preload/kind.hpp"
#include "preload/listeners.hpp"
#include "preload/log.hpp"
#include "preload/observed.hpp"
#include "preload/permitted.hpp"
#include "preload/privilege.hpp"
#include "preload/proof.hpp"
#include "preload/real.hpp"
#include "preload/vacant.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint32_t kConnectorGivesUp = 400;
constexpr std::uint32_t kAcceptorGivesUp = 600;
constexpr std::size_t kHeaderBytes = 2 * kDirectionBytes;

// What the accepting end leaves with the memory file.
struct Hello {
  static constexpr std::uint64_t kMagic = 0x33504354'4C4C4143;  // "CALLTCP3"
  std::uint64_t magic;
  std::uint64_t acceptor_cookie;
  std::uint64_t connector_cookie;
  std::uint64_t ring_bytes;
};

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

// Of one that has just ceased to be a candidate.
void tell_reason(int fd, Side& side, Reason reason) noexcept {
  observe_given_up(fd, side, reason);
  note_reason(side, reason);
}

// Holds `advancing`.
void give_up(int fd, Side& side, Reason reason) noexcept {
  // Whoever has ended it meanwhile has noted why.
  if (end_stage(side)) tell_reason(fd, side, reason);
  stop_listening(side);
  log(LogLevel::debug, "descriptor %d stays with the kernel (reason %d)", fd,
      static_cast<int>(reason));
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
  if (has_ordinary_options(fd, side.kind)) return true;
  give_up(fd, side, Reason::option);
  return false;
}

// An answer through the ring acknowledges nothing, so Nagle's algorithm would hold back what goes
// through the kernel until the peer's acknowledgement is overdue.
void hold_nothing_back(int fd, Side& side) noexcept {
  int nodelay = 0;
  socklen_t size = sizeof nodelay;
  kernel(SYS_getsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, &size);
  side.nodelay.store(nodelay != 0, std::memory_order_relaxed);
  nodelay = 1;
  kernel(SYS_setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
}

// Whoever sets O_NONBLOCK meanwhile does so in the kernel first. So one of the two notes what is
// there in the end.
void note_flags(int fd, Side& side) noexcept {
  constexpr int kLooks = 16;
  long before = -1;
  for (int i = 0; i < kLooks; ++i) {
    const long flags = kernel(SYS_fcntl, fd, F_GETFL);
    if (flags < 0 || flags == before) return;
    before = flags;
    side.nonblocking.store((flags & O_NONBLOCK) != 0, std::memory_order_seq_cst);
  }
}

enum class Joined : std::uint8_t { yes, no, shared };

// What belongs to each process alone is copied by fork(), so it is there before a child can be, and
// with what all of them see; a child that came earlier has none. Holds both locks, and may be
// taken once `life`, which whoever forks holds, is held as well.
Joined take_rings(Side& side, std::byte* base, std::size_t size, const Ring& first,
                  const Ring& second) noexcept {
  if (side.processes.load(std::memory_order_relaxed) != 1) return Joined::shared;
  // Somebody may have ended it just now, see end_candidacy().
  std::uint32_t stage = side.connector ? Side::kListening : Side::kCandidate;
  if (!side.stage.compare_exchange_strong(stage, Side::kJoined)) return Joined::no;
  side.own().mapping = base;
  side.own().mapped = size;
  // The first one carries what the connecting end sends.
  side.own().out = side.connector ? first : second;
  side.own().in = side.connector ? second : first;
  return Joined::yes;
}

// Maps both directions and lets the side use them.
Joined join(int fd, Side& side, int memory, std::size_t ring_bytes, bool fresh) noexcept {
  const std::size_t size = kHeaderBytes + 2 * ring_bytes;
  std::byte* const base = map_connection(size, memory);
  if (base == nullptr) return Joined::no;
  const auto ring = [&](std::size_t which) {
    return Ring{.control = reinterpret_cast<Direction*>(base + which * kDirectionBytes),
                .bytes = base + kHeaderBytes + which * ring_bytes,
                .size = ring_bytes};
  };
  if (fresh) {
    start_direction(*ring(0).control);
    start_direction(*ring(1).control);
  } else if (compare_with_peer(fd, side, *ring(1).control, *ring(0).control) != Agreement::agree) {
    kernel(SYS_munmap, base, size);
    give_up(fd, side, Reason::seen_too_late);
    return Joined::no;
  }
  note_flags(fd, side);  // before anybody goes by it
  side.own().cookie = cookie_of(fd);
  Guard living(life_lock());
  const Guard receiving(side.receive_lock);
  const Guard sending(side.send_lock);
  const Joined joined = take_rings(side, base, size, ring(0), ring(1));
  living.unlock();
  if (joined != Joined::yes) {
    kernel(SYS_munmap, base, size);
    return joined;
  }
  note_flags(fd, side);
  if (side.kind == Kind::tcp) hold_nothing_back(fd, side);
  note_room(side, fd);
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
  observe_joined(side, memory);
  log(LogLevel::debug, "descriptor %d is accelerated", fd);
  return Joined::yes;
}

void start_listening(int fd, Side& side) noexcept {
  sockaddr_un name{};
  socklen_t length = 0;
  if (meeting_name(fd, side, name, length) != 0) return;  // not connected yet
  if (!may_join_listeners()) return;                      // perhaps later
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) return give_up(fd, side, Reason::no_memory);
  if (!join_listeners(side, static_cast<int>(made))) {
    kernel(SYS_close, made);  // perhaps later
    return;
  }
  const int listener = make_private(static_cast<int>(made));
  if (kernel(SYS_bind, listener, &name, length) < 0 || kernel(SYS_listen, listener, 1) < 0) {
    close_private(listener);
    leave_listeners(side);
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
  FoundSocket found{};
  const int sought = find_peer(fd, side, found);
  if (sought == -EAGAIN) return;  // the guest waits
  const int guest = side.guest;
  Hello hello{};
  Passed passed;
  ucred peer{};
  const bool trusted = peer_may_share(guest, peer);
  const long got = trusted ? receive_with(guest, &hello, sizeof hello, passed) : -EPERM;
  if (got == -EAGAIN) return;  // it is about to
  const bool proven = got > 0 && hello.magic == Hello::kMagic &&
                      hello.connector_cookie == cookie_of(fd) && sought == 0 &&
                      found.cookie == hello.acceptor_cookie && found.uid == peer.uid;
  const std::uint64_t ring = hello.ring_bytes;
  const int memory = passed.fds[0];
  const bool sound = proven && is_sound_ring(ring) &&
                     is_sound_memory(memory, kHeaderBytes + 2 * ring) && passed.fds[1] < 0;
  if (sound) take_message(guest, passed);
  close_visitor(guest);
  side.guest = -1;
  if (got < 0) return;  // somebody else; the right one may still come
  side.peer_pid = peer.pid;
  if (sound && count_accelerated()) {
    const Joined joined = join(fd, side, memory, ring, false);
    if (joined == Joined::yes) {
      stop_listening(side);
    } else {
      uncount_accelerated();
      give_up(fd, side, joined == Joined::shared ? Reason::shared : Reason::no_memory);
    }
  } else {
    give_up(fd, side, sound ? Reason::too_many : Reason::no_proof);
  }
}

// Leaves the memory file where the connecting end listens, if it does already. False: it cannot
// know now where that is.
bool leave_memory(int fd, Side& side) noexcept {
  sockaddr_un name{};
  socklen_t length = 0;
  if (const int result = meeting_name(fd, side, name, length); result != 0) {
    if (result == -EAGAIN) return false;
    give_up(fd, side, side.kind == Kind::tcp ? Reason::too_short : Reason::no_proof);
    return true;
  }
  const long made = kernel(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (made < 0) {
    give_up(fd, side, Reason::no_memory);
    return true;
  }
  const int host = static_cast<int>(made);
  if (kernel(SYS_connect, host, &name, length) < 0) {  // nobody there (yet)
    kernel(SYS_close, host);
    return true;
  }
  const auto leave = [&]() -> bool {
    if (!is_sound(fd, side)) return false;
    ucred peer{};
    if (!peer_may_share(host, peer)) {
      give_up(fd, side, Reason::other_user);
      return false;
    }
    side.peer_pid = peer.pid;
    FoundSocket found{};
    // Whoever listens there must be the user to whom the kernel gives what is sent.
    if (find_peer(fd, side, found) != 0 || found.uid != peer.uid) {
      give_up(fd, side, Reason::no_proof);
      return false;
    }
    if (!count_accelerated()) {
      give_up(fd, side, Reason::too_many);
      return false;
    }
    const std::size_t ring = ring_bytes_of(fd, side.kind);
    const char* const kind = side.kind == Kind::tcp ? "farcall-tcp" : "farcall-unix";
    const int memory = create_memory(kind, kHeaderBytes + 2 * ring);
    Hello hello{.magic = Hello::kMagic,
                .acceptor_cookie = cookie_of(fd),
                .connector_cookie = found.cookie,
                .ring_bytes = ring};
    // Mapped and begun before the other end can see it.
    const Joined joined = memory >= 0 ? join(fd, side, memory, ring, true) : Joined::no;
    const bool left = joined == Joined::yes && send_with(host, &hello, sizeof hello, &memory, 1);
    if (memory >= 0) kernel(SYS_close, memory);
    if (joined != Joined::yes) uncount_accelerated();
    // Shared with a child that may close it: see step().
    if (joined == Joined::no) give_up(fd, side, Reason::no_memory);
    return left;
  };
  leave();
  close_connection(host);
  return true;
}

}  // namespace

namespace {

// Where there is something to wait for, or others are in the way.
std::uint32_t soon_after(std::uint32_t calls) noexcept { return calls + std::max(8U, calls / 8); }

// Processes with which memory has been shared, as the kernel names those who made the other ends.
constinit std::array<std::atomic<pid_t>, 64> partners{};

std::atomic<pid_t>& partner_like(pid_t pid) noexcept {
  return partners[static_cast<std::size_t>(pid) % partners.size()];
}

pid_t maker_of_peer(int fd, const Side& side) noexcept {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (!is_unix(side.kind) || kernel(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
    return 0;
  return std::max(peer.pid, 0);
}

// Its peer has the library, most likely, and comes when it can.
bool has_partner(int fd, const Side& side) noexcept {
  const pid_t pid = maker_of_peer(fd, side);
  return pid != 0 && partner_like(pid).load(std::memory_order_relaxed) == pid;
}
void note_partner(int fd, const Side& side) noexcept {
  if (const pid_t pid = maker_of_peer(fd, side); pid != 0)
    partner_like(pid).store(pid, std::memory_order_relaxed);
}

void connector_step(int fd, Side& side, std::uint32_t calls) noexcept {
  if (side.stage.load(std::memory_order_relaxed) == Side::kListening) {
    if (side.listener_owner != own_pid())
      give_up(fd, side, Reason::shared);
    else
      take_memory(fd, side);
  } else {
    start_listening(fd, side);
  }
  const std::uint32_t stage = side.stage.load(std::memory_order_relaxed);
  if (stage == Side::kJoined) note_partner(fd, side);
  if (stage > Side::kListening) return;
  const bool has_guest = side.guest >= 0;
  if (calls >= kConnectorGivesUp && !has_guest) return give_up(fd, side, Reason::peer_plain);
  std::uint32_t next = calls + calls / 2;
  if (calls < 8)
    next = calls + (calls < kAcceptorBegins ? 3 : 1);
  else if (has_guest || stage == Side::kCandidate || has_partner(fd, side))
    next = soon_after(calls);
  side.next_try.store(next, std::memory_order_relaxed);
}

void acceptor_step(int fd, Side& side, std::uint32_t calls) noexcept {
  const bool looked = leave_memory(fd, side);
  if (side.accelerated()) note_partner(fd, side);
  if (side.stage.load(std::memory_order_relaxed) != Side::kCandidate) return;
  // A peer with the library is there when this end first looks, or soon after. Each look costs a
  // few system calls, so for one without it there are few.
  if (looked && calls >= kAcceptorGivesUp) return give_up(fd, side, Reason::peer_plain);
  const bool soon = !looked || (calls > kAcceptorBegins && has_partner(fd, side));
  side.next_try.store(soon ? soon_after(calls) : 2 * calls, std::memory_order_relaxed);
}

void look_for_peer(int fd, Side& side, std::uint32_t calls) noexcept {
  if (!acceleration_is_permitted()) return give_up(fd, side, Reason::unseen);
  if (side.connector)
    connector_step(fd, side, calls);
  else
    acceptor_step(fd, side, calls);
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
      side.next_try.store(soon_after(calls), std::memory_order_relaxed);
  } else if (side.corked.load(std::memory_order_relaxed)) {
    side.next_try.store(soon_after(calls), std::memory_order_relaxed);
  } else {
    look_for_peer(fd, side, calls);
  }
}

}  // namespace

bool end_candidacy(Side& side) noexcept {
  if (!end_stage(side)) return false;
  // Of a child that runs on its parent's memory the descriptors are not the parent's, which closes
  // its listener with the connection.
  if (!in_own_process()) return true;
  // Who is taking a step closes the listener in the end.
  if (!side.advancing.exchange(true, std::memory_order_acquire)) {
    stop_listening(side);
    side.advancing.store(false, std::memory_order_release);
  }
  return true;
}

bool end_candidacy(int fd, Side& side, Reason reason) noexcept {
  if (!end_candidacy(side)) return false;
  tell_reason(fd, side, reason);
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
  if (never && !stats_wanted() && in_own_process()) release(forget(fd), Ending::goes_on);
}

}  // namespace farcall::preload
