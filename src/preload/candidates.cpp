// SPDX-License-Identifier: Apache-2.0
//
// Which connections may be accelerated.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "preload/diag.hpp"
#include "preload/epoll/epoll.hpp"
#include "preload/listeners.hpp"
#include "preload/observed.hpp"
#include "preload/opened.hpp"
#include "preload/privilege.hpp"
#include "preload/real.hpp"
#include "preload/upgrade.hpp"

namespace farcall::preload {
namespace {

constinit std::atomic<bool> refused{false};

int number_for_tests(const char* name) noexcept {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::atoi(text);
}

// For tests: the number of calls after which an end begins, so that it does at the first; and
// whether others seem to compete for the processors, 1: by turns, 2: always.
std::uint32_t begins_after(std::uint32_t usual) noexcept {
  static constinit std::atomic<std::int32_t> forced{-1};
  std::int32_t value = forced.load(std::memory_order_relaxed);
  if (value < 0) {
    value = number_for_tests("FARCALL_TEST_UPGRADE_AFTER");
    const int competes = number_for_tests("FARCALL_TEST_COMPETES");
    if (competes != 0) pretend(competes == 1 ? Pretence::by_turns : Pretence::always, now_ticks());
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

// From now on this is a connection that may be accelerated.
void note_candidate(int fd, Kind kind, bool connector, Counters* counters, const sockaddr* peer,
                    socklen_t size) noexcept {
  if (acceleration_ended()) return count(counters, Reason::unseen);
  // Standard streams are read, written and closed inside the C library, unseen.
  if (fd <= STDERR_FILENO) return count(counters, Reason::passed);
  if (connector && !is_opened_alone(fd)) return count(counters, Reason::shared);
  Side* const side = make_side(kind, connector);
  if (side == nullptr) return;
  side->own().counters = counters;
  make_way_for(fd);
  observe_candidate(fd, *side, peer, size);
  side->next_try.store(begins_after(connector ? kConnectorBegins : kAcceptorBegins),
                       std::memory_order_relaxed);
  adopt(fd, *side);
  note_if_registered(*side, fd);
  // Copied meanwhile by another thread, which did not find the side.
  if (connector && !is_opened_alone(fd)) end_candidacy(fd, *side, Reason::shared);
}

bool has_lists() noexcept {
  return settings().exclude.count != 0 || settings().accelerate.count != 0;
}

// Counts a connection. False if the settings do not want it.
bool count_connection(Counters* counters, bool wanted) noexcept {
  if (counters != nullptr) counters->connections.fetch_add(1, std::memory_order_relaxed);
  if (!wanted) count(counters, Reason::excluded);
  return wanted;
}

int option_of(int fd, int option) noexcept {
  int value = -1;
  socklen_t size = sizeof value;
  kernel(SYS_getsockopt, fd, SOL_SOCKET, option, &value, &size);
  return value;
}

void note_tcp(int fd, const sockaddr* peer, socklen_t size, bool connector) noexcept {
  Endpoint there{};
  if (!settings().tcp || !Endpoint::from(peer, there)) return;
  // Who connects to no address in particular comes to this host.
  if (is_wildcard(there) && !address_of(SYS_getpeername, fd, there)) return;
  Endpoint here{};
  bool here_known = false;
  if (!is_loopback(there)) {
    here_known = address_of(SYS_getsockname, fd, here);
    if (!here_known || here.address != there.address) return;
  }
  if (connector && option_of(fd, SO_PROTOCOL) != IPPROTO_TCP) return;
  Counters* counters = nullptr;
  if (stats_wanted() || has_lists()) {
    if (!here_known && !address_of(SYS_getsockname, fd, here)) return;
    counters = counters_for(Protocol::tcp, connector ? there : here);
    if (!count_connection(counters, settings().wants(here, there))) return;
  }
  note_candidate(fd, Kind::tcp, connector, counters, peer, size);
}

void note_unix(int fd, const sockaddr* peer, socklen_t size, bool connector) noexcept {
  const int type = settings().unix_streams ? option_of(fd, SO_TYPE) : -1;
  if (type != SOCK_STREAM && type != SOCK_SEQPACKET) return;
  Counters* counters = nullptr;
  if (stats_wanted() || has_lists()) {
    sockaddr_storage own{};
    socklen_t own_size = sizeof own;
    if (!connector && kernel(SYS_getsockname, fd, &own, &own_size) < 0) return;
    const UnixName server = connector ? UnixName::from(peer, size)
                                      : UnixName::from(reinterpret_cast<sockaddr*>(&own), own_size);
    counters = counters_for(server);
    if (!count_connection(counters, settings().wants(server))) return;
  }
  note_candidate(fd, type == SOCK_STREAM ? Kind::unix_stream : Kind::unix_packets, connector,
                 counters, peer, size);
}

}  // namespace

void no_more_candidates() noexcept { refused.store(true, std::memory_order_relaxed); }

bool acceleration_ended() noexcept { return refused.load(std::memory_order_relaxed); }

bool may_accelerate() noexcept {
  return settings().enabled && (settings().tcp || settings().unix_streams) &&
         (!acceleration_ended() || (stats_wanted() && !is_confined()));
}

void note_connection(int fd, const sockaddr* peer, socklen_t size, bool connector) noexcept {
  if (!may_accelerate() || peer == nullptr || size < sizeof(sa_family_t)) return;
  if (peer->sa_family == AF_UNIX)
    note_unix(fd, peer, size, connector);
  else if (size >= sizeof(sockaddr_in))
    note_tcp(fd, peer, size, connector);
}

void note_pair(const int (&fds)[2]) noexcept {
  if (!may_accelerate()) return;
  sockaddr_un nameless{};
  nameless.sun_family = AF_UNIX;
  for (int i = 0; i < 2; ++i)
    note_connection(fds[i], reinterpret_cast<const sockaddr*>(&nameless), sizeof(sa_family_t),
                    i == 0);
}

}  // namespace farcall::preload
