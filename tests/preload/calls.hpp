// SPDX-License-Identifier: Apache-2.0
//
// What the tests of single calls share.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "farcall/memory.hpp"
#include "stream_pair.hpp"

namespace farcall::preload {

inline std::string receive_exactly(int fd, std::size_t size) {
  std::string text;
  while (text.size() < size) {
    const std::string part = receive(fd, size - text.size());
    text += part;
    if (part.empty() || part[0] == '(') break;
  }
  return text;
}

inline void set_option(int fd, int level, int option, int value) {
  ASSERT_EQ(::setsockopt(fd, level, option, &value, sizeof value), 0) << errno_name();
}

inline UniqueFd udp_socket() {
  UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  return fd;
}

// What the kernel has sent of it, also again.
inline std::uint64_t sent_by_kernel(int fd) {
  struct {
    tcp_info info;
    std::byte newer[256];
  } counted{};
  // After the fields that the C library knows: pacing rates, and acked, received, segments.
  struct Newer {
    std::uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
    std::uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
    std::uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
    std::uint32_t delivered, delivered_ce;
    std::uint64_t bytes_sent;
  } newer{};
  socklen_t size = sizeof counted;
  EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &counted, &size), 0);
  std::memcpy(&newer, &counted.newer, sizeof newer);
  return newer.bytes_sent;
}

struct Message {
  explicit Message(std::size_t room = 64) : text(room, '\0') {
    part = {.iov_base = text.data(), .iov_len = room};
    head.msg_iov = &part;
    head.msg_iovlen = 1;
    head.msg_control = control;
    head.msg_controllen = sizeof control;
  }
  std::string receive(int fd, int flags = 0) {
    const ssize_t got = ::recvmsg(fd, &head, flags);
    return got < 0 ? errno_name() : text.substr(0, static_cast<std::size_t>(got));
  }
  // What accompanies the bytes: level, type and the first number of each.
  [[nodiscard]] const cmsghdr* companion(int level, int type) const {
    for (cmsghdr* one = CMSG_FIRSTHDR(&head); one != nullptr;
         one = CMSG_NXTHDR(const_cast<msghdr*>(&head), one))
      if (one->cmsg_level == level && one->cmsg_type == type) return one;
    return nullptr;
  }
  std::string text;
  iovec part{};
  alignas(cmsghdr) char control[256]{};
  msghdr head{};
};

inline void expect_answers(int fd, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    ASSERT_EQ(send(fd, "ping"), "4");
    ASSERT_EQ(receive_exactly(fd, 4), "ping") << "in round " << i;
  }
}

}  // namespace farcall::preload
