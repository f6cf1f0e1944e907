// SPDX-License-Identifier: Apache-2.0
#include "socket/listener.hpp"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>

#include "farcall/memory.hpp"

namespace farcall {
namespace {

using Bytes = std::span<const std::byte>;

template <class T>
bool read_front(Bytes bytes, T& into) noexcept {
  if (bytes.size() < sizeof into) return false;
  std::memcpy(&into, bytes.data(), sizeof into);
  return true;
}

Bytes behind(Bytes bytes, std::size_t count) noexcept {
  return bytes.subspan(std::min(count, bytes.size()));
}

// The owner of the socket that a message tells of, if that has the name and the type.
std::optional<uid_t> owner_if_named(Bytes message, std::string_view name, int type) noexcept {
  unix_diag_msg socket;
  if (!read_front(message, socket) || socket.udiag_type != type) return std::nullopt;
  std::optional<uid_t> owner;
  bool is_named = false;
  rtattr attribute;
  for (message = behind(message, NLMSG_ALIGN(sizeof socket)); read_front(message, attribute);
       message = behind(message, RTA_ALIGN(attribute.rta_len))) {
    if (attribute.rta_len < sizeof attribute || attribute.rta_len > message.size()) break;
    const Bytes value = message.first(attribute.rta_len).subspan(sizeof attribute);
    if (attribute.rta_type == UNIX_DIAG_NAME) {
      // Abstract ones begin with a zero.
      is_named = value.size() == name.size() + 1 && value[0] == std::byte{} &&
                 std::memcmp(value.data() + 1, name.data(), name.size()) == 0;
    } else if (attribute.rta_type == UNIX_DIAG_UID) {
      std::uint32_t uid = 0;
      if (read_front(value, uid)) owner = uid;
    }
  }
  return is_named ? owner : std::nullopt;
}

}  // namespace

std::optional<uid_t> owner_of_listener(std::string_view name, int type) noexcept {
  const UniqueFd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!netlink) return std::nullopt;
  struct {
    nlmsghdr header;
    unix_diag_req request;
  } question{};
  question.header = {.nlmsg_len = sizeof question,
                     .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                     .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
                     .nlmsg_seq = 1,
                     .nlmsg_pid = 0};
  question.request.sdiag_family = AF_UNIX;
  question.request.udiag_states = 1U << TCP_LISTEN;
  question.request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  if (::send(netlink.get(), &question, sizeof question, 0) != sizeof question) return std::nullopt;

  alignas(nlmsghdr) std::array<std::byte, 16384> answer;
  for (;;) {
    const ssize_t count = ::recv(netlink.get(), answer.data(), answer.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    nlmsghdr header;
    for (Bytes left(answer.data(), static_cast<std::size_t>(count)); read_front(left, header);
         left = behind(left, NLMSG_ALIGN(header.nlmsg_len))) {
      if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || header.nlmsg_len < NLMSG_HDRLEN ||
          header.nlmsg_len > left.size())
        return std::nullopt;  // the end, or an error
      const Bytes message = left.first(header.nlmsg_len).subspan(NLMSG_HDRLEN);
      if (const auto owner = owner_if_named(message, name, type)) return owner;
    }
  }
}

}  // namespace farcall
