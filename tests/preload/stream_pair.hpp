// SPDX-License-Identifier: Apache-2.0
//
// Connections for tests that run several times: over TCP, over unix streams (--unix) and, where
// boundaries do not matter or are the matter, over unix sockets of packets (--packets); as they are
// and with the library preloaded.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "farcall/memory.hpp"
#include "preloaded.hpp"

namespace farcall::preload {

inline bool over_packets() {
  static const bool value = has_argument("--packets");
  return value;
}
inline bool over_unix() {
  static const bool value = has_argument("--unix") || over_packets();
  return value;
}
inline int socket_type() { return over_packets() ? SOCK_SEQPACKET : SOCK_STREAM; }
inline int stream_family() { return over_unix() ? AF_UNIX : AF_INET; }

// How many mappings this process has of memory that streams share.
inline int stream_mappings() {
  return shared_mappings(over_unix() ? "farcall-unix" : "farcall-tcp");
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t size = sizeof bytes;

  [[nodiscard]] sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

inline UniqueFd stream_socket() {
  return UniqueFd(::socket(stream_family(), socket_type() | SOCK_CLOEXEC, 0));
}

// A port on loopback, or an abstract name, that the kernel chooses.
inline void bind_and_listen(int listener, Address& address) {
  address = {};
  address.bytes.ss_family = static_cast<sa_family_t>(stream_family());
  if (!over_unix()) {
    auto& in = reinterpret_cast<sockaddr_in&>(address.bytes);
    in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  const socklen_t size = over_unix() ? sizeof(sa_family_t) : sizeof(sockaddr_in);
  ASSERT_EQ(::bind(listener, address.get(), size), 0) << std::strerror(errno);
  ASSERT_EQ(::listen(listener, 16), 0);
  ASSERT_EQ(::getsockname(listener, address.get(), &address.size), 0);
}

inline UniqueFd listen_on_loopback(Address& address) {
  UniqueFd listener = stream_socket();
  bind_and_listen(listener.get(), address);
  return listener;
}

inline UniqueFd connect_to(const Address& address) {
  UniqueFd client = stream_socket();
  EXPECT_EQ(::connect(client.get(), address.get(), address.size), 0) << std::strerror(errno);
  return client;
}

inline UniqueFd accept_from(const UniqueFd& listener) {
  UniqueFd server(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_GE(server.get(), 0) << std::strerror(errno);
  return server;
}

inline void send_at_once(int fd) {
  const int one = 1;
  if (!over_unix()) {
    EXPECT_EQ(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one), 0);
  }
}

inline std::string errno_name() { return std::string("(") + strerrorname_np(errno) + ")"; }

// What came, "(end)", or the name of the errno in brackets.
inline std::string receive(int fd, std::size_t size = 4096, int flags = 0) {
  std::string text(size, '\0');
  const ssize_t got = ::recv(fd, text.data(), size, flags);
  if (got < 0) return errno_name();
  if (got == 0) return "(end)";
  text.resize(static_cast<std::size_t>(got));
  return text;
}

// How many bytes were sent, or the name of the errno in brackets.
inline std::string send(int fd, const std::string& text, int flags = MSG_NOSIGNAL) {
  const ssize_t sent = ::send(fd, text.data(), text.size(), flags);
  return sent < 0 ? errno_name() : std::to_string(sent);
}

// Both ends of a connection, in this process; `warm`: accelerated, where the library is there.
struct Pair {
  struct Unmade {};
  explicit Pair(Unmade) {}  // for who makes it without help
  explicit Pair(bool warm = true) {
    connect();
    if (warm) warm_up();
  }
  void connect() {
    Address address;
    const UniqueFd listener = listen_on_loopback(address);
    client = connect_to(address);
    server = accept_from(listener);
    send_at_once(client.get());
    send_at_once(server.get());
  }
  void warm_up() {
    const int before = stream_mappings();
    talk(20);
    // Ends of unix sockets look for each other for a small share of the time (look_budget.hpp).
    // Where that is used up a connection made later is looked at.
    for (int i = 0; i < 10 && over_unix() && preloaded() && stream_mappings() != before + 2; ++i) {
      ::sleep(1);
      connect();
      talk(20);
    }
    if (preloaded()) {
      EXPECT_EQ(stream_mappings(), before + 2) << "not accelerated";
    }
  }
  void talk(int rounds) const {
    for (int i = 0; i < rounds; ++i) {
      EXPECT_EQ(send(client.get(), "ping"), "4");
      EXPECT_EQ(receive(server.get()), "ping");
      EXPECT_EQ(send(server.get(), "pong"), "4");
      EXPECT_EQ(receive(client.get()), "pong");
    }
  }
  // With `text` on its way from the client, and already there.
  void put(const std::string& text) const {
    ASSERT_EQ(send(client.get(), text), std::to_string(text.size()));
  }
  UniqueFd client, server;
};

// The server waits for it in an epoll set, and more has been sent than one page: with the library,
// bytes go through memory.
struct UsedPair : Pair {
  using MakeSet = long (*)();
  explicit UsedPair(MakeSet make_set = [] { return long{::epoll_create1(EPOLL_CLOEXEC)}; })
      : set(static_cast<int>(make_set())) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 1}};
    EXPECT_EQ(::epoll_ctl(set.get(), EPOLL_CTL_ADD, server.get(), &event), 0);
    EXPECT_EQ(comes_to_memory(), preloaded());
  }
  // Whether what is sent goes past the kernel in the end. Where others compete for the processor a
  // set does not look at its sockets at once.
  [[nodiscard]] bool comes_to_memory() const {
    bool in_memory = false;
    epoll_event event{};
    for (int i = 0; i < 60 || (preloaded() && !in_memory && i < 2000); ++i) {
      const std::string block(500, 'x');
      put(block);
      in_memory = !readable_for_kernel(server.get());
      if (i > 60) ::usleep(1000);
      EXPECT_EQ(::epoll_wait(set.get(), &event, 1, 10'000), 1);
      EXPECT_EQ(receive(server.get()), block);
    }
    return in_memory;
  }
  UniqueFd set;
};

}  // namespace farcall::preload
