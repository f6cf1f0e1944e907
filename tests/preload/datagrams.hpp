// SPDX-License-Identifier: Apache-2.0
//
// UDP sockets for tests that run plain and with the library preloaded.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "farcall/memory.hpp"
#include "harness/ancillary_message.hpp"
#include "preloaded.hpp"

namespace farcall::preload {

inline int shared_mappings() { return shared_mappings("farcall-udp"); }

// A socket at a loopback address, of its own port if none is given.
struct Socket {
  explicit Socket(const char* at = "127.0.0.1", int family = AF_INET, in_port_t port = 0)
      : fd(::socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0)), size(sizeof name) {
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(port);
    if (family == AF_INET)
      ::inet_pton(AF_INET, at, &four.sin_addr);
    else
      ::inet_pton(AF_INET6, at, &six.sin6_addr);
    const auto* wanted = family == AF_INET ? reinterpret_cast<const sockaddr*>(&four)
                                           : reinterpret_cast<const sockaddr*>(&six);
    bound = ::bind(fd.get(), wanted, family == AF_INET ? sizeof four : sizeof six) == 0;
    const timeval limit{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&name), &size);
  }
  [[nodiscard]] std::string receive(int flags = 0, std::size_t room = 4096) const {
    std::string text(room, '\0');
    const ssize_t got = ::recv(fd.get(), text.data(), room, flags);
    if (got < 0) return std::string("(") + strerrorname_np(errno) + ")";
    text.resize(std::min(room, static_cast<std::size_t>(got)));
    return text;
  }
  void connect_to(const Socket& other) const {
    ASSERT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&other.name), other.size), 0);
  }
  void send(const std::string& text) const {
    ASSERT_EQ(::send(fd.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  UniqueFd fd;
  sockaddr_storage name{};
  socklen_t size;
  bool bound = false;
};

// Two that are connected with each other, and have been for a while.
struct Two {
  explicit Two(const char* at = "127.0.0.1", int family = AF_INET)
      : near(at, family), far(at, family) {
    near.connect_to(far);
    far.connect_to(near);
    warm();
  }
  void warm() const {
    const int before = shared_mappings();
    for (int i = 0; i < 40; ++i) {
      near.send("ping");
      EXPECT_EQ(far.receive(), "ping");
      far.send("pong");
      EXPECT_EQ(near.receive(), "pong");
    }
    if (preloaded()) {
      EXPECT_EQ(shared_mappings(), before + 4) << "not accelerated";
    }
  }
  Socket near, far;
};

// A socket of which the library knows nothing.
struct Stranger {
  Stranger() : fd(static_cast<int>(kernel(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0))) {}
  void send_to(const Socket& to, const std::string& text) const {
    ASSERT_EQ(kernel(SYS_sendto, fd.get(), text.data(), text.size(), 0, &to.name, to.size),
              text.size());
  }
  UniqueFd fd;
};

inline short poll_once(int fd, int timeout = 0) {
  pollfd wait{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_GE(::poll(&wait, 1, timeout), 0);
  return wait.revents;
}

// Whoever polls has them come by memory.
struct Ends {
  Ends() { near.connect_to(far); }
  void warm() const {
    for (int i = 0; i < 40; ++i) {
      near.send("x");
      EXPECT_EQ(poll_once(far.fd.get(), 1000), POLLIN);
      EXPECT_EQ(far.receive(), "x");
    }
    if (preloaded()) {
      near.send("x");
      EXPECT_FALSE(readable_for_kernel(far.fd.get())) << "not accelerated";
      EXPECT_EQ(far.receive(), "x");
    }
  }
  void send_by_kernel(const std::string& text) const {
    constexpr int kHops = 9;
    ASSERT_EQ(test::AncillaryMessage(text.data(), text.size())
                  .add(IPPROTO_IP, IP_TTL, kHops)
                  .send(near.fd.get()),
              static_cast<ssize_t>(text.size()));
  }
  Socket near, far;
};
struct Awake : Ends {
  Awake() { warm(); }
};

inline std::thread in_a_moment(const Socket& from, const std::string& text) {
  return std::thread([&from, text] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    from.send(text);
  });
}

struct Set {
  explicit Set(int fd, std::uint32_t events) { add(fd, events); }
  void add(int fd, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.u64 = static_cast<std::uint64_t>(fd)}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &event), 0);
  }
  void change(int fd, std::uint32_t events) const {
    epoll_event event{.events = events, .data = {.u64 = static_cast<std::uint64_t>(fd)}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_MOD, fd, &event), 0);
  }
  // The descriptor that is ready; -1 for none.
  [[nodiscard]] int wait(int timeout = 0) const {
    epoll_event event{};
    return ::epoll_wait(set.get(), &event, 1, timeout) == 1 ? static_cast<int>(event.data.u64) : -1;
  }
  UniqueFd set{::epoll_create1(EPOLL_CLOEXEC)};
};

}  // namespace farcall::preload
