// SPDX-License-Identifier: Apache-2.0
#include "socket/peer.hpp"

#include <sys/socket.h>

#include <cerrno>

#include "farcall/error.hpp"
#include "farcall/socket.hpp"
#include "process/process.hpp"
#include "socket/wait_for.hpp"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace farcall {

Credentials peer_credentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) throw_errno("SO_PEERCRED");
  return {.pid = peer.pid, .uid = peer.uid, .gid = peer.gid};
}

std::optional<std::vector<gid_t>> groups_of_peer(int socket) {
  std::vector<gid_t> groups(32);
  for (;;) {
    socklen_t size = static_cast<socklen_t>(groups.size() * sizeof(gid_t));
    if (::getsockopt(socket, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) == 0) {
      groups.resize(size / sizeof(gid_t));
      return groups;
    }
    if (errno != ERANGE || size <= groups.size() * sizeof(gid_t)) return std::nullopt;
    groups.resize(size / sizeof(gid_t));
  }
}

PeerProcess process_of_peer(int socket) noexcept {
  int process = -1;
  socklen_t size = sizeof process;
  const int before = errno;
  PeerProcess peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size) == 0)
    peer.descriptor.reset(process);
  else
    peer.ended = errno == ESRCH || errno == EINVAL;  // the latter in the first that have it
  errno = before;
  return peer;
}

bool has_peer_ended(int socket) noexcept {
  const process::NoFork guard;  // no child keeps the descriptor
  const PeerProcess peer = process_of_peer(socket);
  return peer.ended || (peer.descriptor && events_now(peer.descriptor.get(), POLLIN) != 0);
}

}  // namespace farcall
