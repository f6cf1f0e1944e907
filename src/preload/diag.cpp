// SPDX-License-Identifier: Apache-2.0
#include "preload/diag.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstring>

#include "preload/real.hpp"

namespace farcall::preload {
namespace {

constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

void put_address(__be32 (&to)[4], const Endpoint& endpoint, bool v4) noexcept {
  std::memset(to, 0, sizeof to);
  if (v4)
    std::memcpy(to, endpoint.address.data() + 12, 4);
  else
    std::memcpy(to, endpoint.address.data(), 16);
}

struct Question {
  nlmsghdr header;
  inet_diag_req_v2 request;
};

Question question_about(int protocol, int flags) noexcept {
  Question question{};
  question.header = {.nlmsg_len = sizeof question,
                     .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                     .nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags),
                     .nlmsg_seq = 1,
                     .nlmsg_pid = 0};
  question.request.sdiag_protocol = static_cast<std::uint8_t>(protocol);
  question.request.idiag_states = ~0U;
  return question;
}

// A socket at which the answers are, for the kernel gives them before this returns; or the negative
// errno.
template <class Any>
long ask(const Any& question) noexcept {
  const long fd =
      kernel(SYS_socket, AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_SOCK_DIAG);
  if (fd < 0) return fd;
  sockaddr_nl address{};
  address.nl_family = AF_NETLINK;
  const long sent = kernel(SYS_sendto, fd, &question, sizeof question, 0, &address, sizeof address);
  if (sent >= 0) return fd;
  kernel(SYS_close, fd);
  return sent;
}

std::uint64_t cookie_in(const std::uint32_t (&words)[2]) noexcept {
  return static_cast<std::uint64_t>(words[1]) << 32 | words[0];
}

// What the kernel says to a question about one socket: at least `size` bytes of it are in `answer`
// behind the header. Returns how much there is in all, or the negative errno.
long answer_to(long fd, char* answer, std::size_t room, std::size_t size) noexcept {
  const long got = kernel(SYS_recvfrom, fd, answer, room, 0, nullptr, nullptr);
  kernel(SYS_close, fd);
  if (got < 0) return got;
  nlmsghdr header{};
  if (static_cast<std::size_t>(got) < sizeof header) return -EPROTO;
  std::memcpy(&header, answer, sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR) {
    nlmsgerr error{};
    if (static_cast<std::size_t>(got) < NLMSG_HDRLEN + sizeof error) return -EPROTO;
    std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof error);
    return error.error < 0 ? error.error : -EPROTO;
  }
  if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || header.nlmsg_len < NLMSG_HDRLEN + size ||
      header.nlmsg_len > static_cast<std::size_t>(got))
    return -EPROTO;
  return header.nlmsg_len;
}

enum class End : std::uint8_t { all, stopped, failed };

// Calls each(answer, size) for what the kernel says to a question about many sockets, until it is
// false. An error of the kernel's ends the answers, too.
template <class Each>
End for_each_answer(long fd, Each each) noexcept {
  for (;;) {
    alignas(nlmsghdr) char answer[8192];
    const long got =
        kernel(SYS_recvfrom, fd, static_cast<char*>(answer), sizeof answer, 0, nullptr, nullptr);
    if (got <= 0) return End::failed;
    nlmsghdr header{};
    const auto size = static_cast<std::size_t>(got);
    for (std::size_t at = 0; at + sizeof header <= size; at += NLMSG_ALIGN(header.nlmsg_len)) {
      std::memcpy(&header, answer + at, sizeof header);
      if (header.nlmsg_type != SOCK_DIAG_BY_FAMILY || header.nlmsg_len < sizeof header)
        return End::all;
      if (header.nlmsg_len > size - at) return End::failed;
      if (!each(answer + at, header.nlmsg_len)) return End::stopped;
    }
  }
}

int ask_for_socket(int protocol, const Endpoint& local, const Endpoint& remote,
                   FoundSocket& found) noexcept {
  const bool v4 = std::memcmp(remote.address.data(), kMapped, sizeof kMapped) == 0;
  Question question = question_about(protocol, 0);
  question.request.sdiag_family = v4 ? AF_INET : AF_INET6;
  question.request.id.idiag_sport = htons(local.port);
  question.request.id.idiag_dport = htons(remote.port);
  put_address(question.request.id.idiag_src, local, v4);
  put_address(question.request.id.idiag_dst, remote, v4);
  question.request.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  question.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  const long fd = ask(question);
  if (fd < 0) return static_cast<int>(fd);
  alignas(nlmsghdr) char answer[1024];
  inet_diag_msg message;
  if (const long got = answer_to(fd, answer, sizeof answer, sizeof message); got < 0)
    return static_cast<int>(got);
  std::memcpy(&message, answer + NLMSG_HDRLEN, sizeof message);
  // A listener is found for addresses that nobody has.
  if (protocol == IPPROTO_TCP && message.id.idiag_dport != htons(remote.port)) return -ENOENT;
  found.cookie = cookie_in(message.id.idiag_cookie);
  found.inode = message.idiag_inode;
  found.uid = message.idiag_uid;
  return 0;
}

struct UnixQuestion {
  nlmsghdr header;
  unix_diag_req request;
};

UnixQuestion question_about_unix(int flags, std::uint32_t states, std::uint32_t show) noexcept {
  UnixQuestion question{};
  question.header = {.nlmsg_len = sizeof question,
                     .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                     .nlmsg_flags = static_cast<std::uint16_t>(NLM_F_REQUEST | flags),
                     .nlmsg_seq = 1,
                     .nlmsg_pid = 0};
  question.request.sdiag_family = AF_UNIX;
  question.request.udiag_states = states;
  question.request.udiag_show = show;
  question.request.udiag_cookie[0] = question.request.udiag_cookie[1] = ~0U;  // any
  return question;
}

// What an answer of that size says, its header included. False if it is not to be understood.
bool read_unix_answer(const char* answer, std::size_t size, UnixSocket& found) noexcept {
  unix_diag_msg message;
  if (size < NLMSG_HDRLEN + sizeof message) return false;
  std::memcpy(&message, answer + NLMSG_HDRLEN, sizeof message);
  found.socket = {.cookie = cookie_in(message.udiag_cookie),
                  .inode = message.udiag_ino,
                  .uid = static_cast<uid_t>(-1),
                  .queued = 0};
  found.peer = 0;
  constexpr std::size_t kHeader = sizeof(nlattr);
  nlattr attribute{};
  for (std::size_t at = NLMSG_HDRLEN + sizeof message; at + kHeader <= size;
       at += (attribute.nla_len + 3U) & ~std::size_t{3}) {
    std::memcpy(&attribute, answer + at, kHeader);
    if (attribute.nla_len < kHeader || attribute.nla_len > size - at) return false;
    const char* const value = answer + at + kHeader;
    const std::size_t length = attribute.nla_len - kHeader;
    if (attribute.nla_type == UNIX_DIAG_PEER && length == sizeof found.peer)
      std::memcpy(&found.peer, value, length);
    else if (attribute.nla_type == UNIX_DIAG_UID && length == sizeof found.socket.uid)
      std::memcpy(&found.socket.uid, value, length);
    else if (attribute.nla_type == UNIX_DIAG_RQLEN && length == sizeof(unix_diag_rqlen))
      std::memcpy(&found.socket.queued, value, sizeof found.socket.queued);
  }
  return true;
}

int ask_for_unix_socket(std::uint32_t number, UnixSocket& found) noexcept {
  UnixQuestion question =
      question_about_unix(0, ~0U, UDIAG_SHOW_PEER | UDIAG_SHOW_RQLEN | UDIAG_SHOW_UID);
  question.request.udiag_ino = number;
  const long fd = ask(question);
  if (fd < 0) return static_cast<int>(fd);
  alignas(nlmsghdr) char answer[1024];
  const long size = answer_to(fd, answer, sizeof answer, sizeof(unix_diag_msg));
  if (size < 0) return static_cast<int>(size);
  return read_unix_answer(answer, static_cast<std::size_t>(size), found) ? 0 : -EPROTO;
}

}  // namespace

bool address_of(long call, int fd, Endpoint& endpoint) noexcept {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return kernel(call, fd, &address, &size) == 0 &&
         Endpoint::from(reinterpret_cast<const sockaddr*>(&address), endpoint);
}

int find_socket(const Endpoint& local, const Endpoint& remote, FoundSocket& found) noexcept {
  return ask_for_socket(IPPROTO_TCP, local, remote, found);
}

int find_receiver(const Endpoint& from, const Endpoint& to, FoundSocket& found) noexcept {
  return ask_for_socket(IPPROTO_UDP, from, to, found);
}

std::uint32_t number_of_socket(int fd) noexcept {
  struct stat status {};
  if (kernel(SYS_newfstatat, fd, "", &status, AT_EMPTY_PATH) != 0) return 0;
  return static_cast<std::uint32_t>(status.st_ino);
}

int find_unix_peer_number(std::uint32_t own, std::uint32_t& number) noexcept {
  UnixSocket socket{};
  const int result = ask_for_unix_socket(own, socket);
  number = socket.peer;
  return result == 0 && number == 0 ? -ENOTCONN : result;
}

int find_unix_peer(std::uint32_t own, std::uint32_t number, FoundSocket& found) noexcept {
  UnixSocket peer{};
  if (const int result = ask_for_unix_socket(number, peer); result != 0) return result;
  // The number may be another socket's by now.
  if (peer.peer != own) return -ENOTCONN;
  found = peer.socket;
  return 0;
}

bool for_each_unix_socket(void (*each)(void* context, const UnixSocket& socket),
                          void* context) noexcept {
  constexpr std::uint32_t kConnected = 1U << 1;  // as of TCP: established
  const long fd =
      ask(question_about_unix(NLM_F_DUMP, kConnected, UDIAG_SHOW_PEER | UDIAG_SHOW_UID));
  if (fd < 0) return false;
  const End end = for_each_answer(fd, [&](const char* answer, std::size_t size) {
    UnixSocket socket{};
    if (read_unix_answer(answer, size, socket)) each(context, socket);
    return true;
  });
  kernel(SYS_close, fd);
  return end == End::all;
}

bool has_udp_socket(std::uint16_t port, std::uint64_t cookie) noexcept {
  Question question = question_about(IPPROTO_UDP, NLM_F_DUMP);
  question.request.id.idiag_sport = htons(port);
  for (const int family : {AF_INET, AF_INET6}) {
    question.request.sdiag_family = static_cast<std::uint8_t>(family);
    const long fd = ask(question);
    if (fd < 0) return true;
    const End end = for_each_answer(fd, [&](const char* answer, std::size_t size) {
      inet_diag_msg message;
      if (size < NLMSG_HDRLEN + sizeof message) return true;
      std::memcpy(&message, answer + NLMSG_HDRLEN, sizeof message);
      return cookie_in(message.id.idiag_cookie) != cookie;
    });
    kernel(SYS_close, fd);
    if (end != End::all) return true;
  }
  return false;
}

}  // namespace farcall::preload
