// SPDX-License-Identifier: Apache-2.0
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "doctor/sockets.hpp"
#include "farcall/memory.hpp"

namespace farcall::doctor {
namespace {

constexpr int kMostAnswers = 10'000;  // of some dozens of sockets each

bool ask(int fd) {
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  question.request.sdiag_family = AF_UNIX;
  question.request.udiag_states = ~0U;
  question.request.udiag_show = UDIAG_SHOW_PEER | UDIAG_SHOW_NAME;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  return ::sendto(fd, &question, sizeof question, 0, reinterpret_cast<sockaddr*>(&address),
                  sizeof address) >= 0;
}

std::string to_name(const char* bytes, std::size_t size) {
  if (size == 0) return {};
  if (bytes[0] == '\0') return "@" + std::string(bytes + 1, size - 1);
  return {bytes, ::strnlen(bytes, size)};
}

// `message` has its header, and `size` bytes in all.
UnixSocket parse(const char* message, std::size_t size) {
  unix_diag_msg fixed;
  std::memcpy(&fixed, message + NLMSG_HDRLEN, sizeof fixed);
  UnixSocket socket{.number = fixed.udiag_ino, .peer = 0, .type = fixed.udiag_type, .name = {}};
  rtattr attribute{};
  for (std::size_t at = NLMSG_HDRLEN + NLMSG_ALIGN(sizeof fixed); at + sizeof attribute <= size;
       at += RTA_ALIGN(attribute.rta_len)) {
    std::memcpy(&attribute, message + at, sizeof attribute);
    if (attribute.rta_len < sizeof attribute || attribute.rta_len > size - at) break;
    const char* const value = message + at + RTA_LENGTH(0);
    const std::size_t length = attribute.rta_len - RTA_LENGTH(0);
    std::uint32_t peer = 0;
    if (attribute.rta_type == UNIX_DIAG_PEER && length == sizeof peer) {
      std::memcpy(&peer, value, sizeof peer);
      socket.peer = peer;
    } else if (attribute.rta_type == UNIX_DIAG_NAME) {
      socket.name = to_name(value, length);
    }
  }
  return socket;
}

}  // namespace

std::vector<UnixSocket> ask_for_unix_sockets() {
  std::vector<UnixSocket> sockets;
  const UniqueFd fd(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd || !ask(fd.get())) return sockets;
  std::vector<char> answer(32768);
  for (int i = 0; i < kMostAnswers; ++i) {
    const ssize_t got = ::recv(fd.get(), answer.data(), answer.size(), MSG_DONTWAIT);
    if (got <= 0) break;
    nlmsghdr header{};
    const auto end = static_cast<std::size_t>(got);
    for (std::size_t at = 0; at + sizeof header <= end; at += NLMSG_ALIGN(header.nlmsg_len)) {
      std::memcpy(&header, answer.data() + at, sizeof header);
      if (header.nlmsg_len < sizeof header || header.nlmsg_len > end - at) return sockets;
      if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY) return sockets;  // that was all, or an error
      if (header.nlmsg_len >= NLMSG_HDRLEN + sizeof(unix_diag_msg))
        sockets.push_back(parse(answer.data() + at, header.nlmsg_len));
    }
  }
  return sockets;
}

}  // namespace farcall::doctor
