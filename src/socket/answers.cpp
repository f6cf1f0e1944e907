// SPDX-License-Identifier: Apache-2.0
#include "socket/answers.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "farcall/error.hpp"
#include "process/identity.hpp"

namespace farcall {

bool is_packet_socket(int descriptor) noexcept {
  const auto option = [descriptor](int which) noexcept {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(descriptor, SOL_SOCKET, which, &value, &size) == 0 ? value : -1;
  };
  return option(SO_DOMAIN) == AF_UNIX && option(SO_TYPE) == SOCK_SEQPACKET;
}

namespace {

// Those who have no number here all look alike.
bool is_same_group(gid_t a, gid_t b) noexcept {
  return a == b && (!process::is_overflow_id(a) || process::knows_all_users());
}

}  // namespace

bool has_number_here(const Credentials& who) noexcept {
  return process::same_user(who.uid, who.uid) && is_same_group(who.gid, who.gid);
}

bool made_by_sender(int answers, const Credentials& sender) noexcept {
  if (!is_packet_socket(answers)) return false;
  ucred maker{};
  socklen_t size = sizeof maker;
  return ::getsockopt(answers, SOL_SOCKET, SO_PEERCRED, &maker, &size) == 0 &&
         maker.pid == sender.pid && process::same_user(maker.uid, sender.uid) &&
         is_same_group(maker.gid, sender.gid);
}

std::pair<process::PrivateFd, process::PrivateFd> private_socket_pair() {
  const process::NoFork guard;
  auto [one, other] = packet_socket_pair();
  return {process::PrivateFd(std::move(one)), process::PrivateFd(std::move(other))};
}

std::pair<process::PrivateFd, process::PrivateFd> server_socket_pair() {
  auto pair = private_socket_pair();
  const int on = 1;
  if (::setsockopt(pair.first.get(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) != 0)
    throw_errno("SO_PASSCRED");
  return pair;
}

bool more_comes_next(int packet_socket) noexcept {
  char byte = 0;
  iovec piece{.iov_base = &byte, .iov_len = sizeof byte};
  // What there is no room for is said to be there.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  return ::syscall(SYS_recvmsg, packet_socket, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 &&
         (message.msg_flags & MSG_CTRUNC) != 0;
}

}  // namespace farcall
