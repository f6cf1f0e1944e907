// SPDX-License-Identifier: Apache-2.0
//
// Sockets as any program uses them, for rows that measure such programs.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <utility>

#include "compare/row.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {

inline sockaddr_in loopback(in_port_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

inline UniqueFd open_socket(int type, int family = AF_INET) {
  UniqueFd fd(::socket(family, type | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  return fd;
}

inline void bind_anywhere(const UniqueFd& fd) {
  const sockaddr_in address = loopback(0);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw_errno("bind to loopback");
}

inline in_port_t port_of(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw_errno("getsockname");
  return address.sin_port;
}

inline void connect_to(const UniqueFd& fd, in_port_t port) {
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw_errno("connect to loopback");
}

inline UniqueFd accept_from(const UniqueFd& listener) {
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted) throw_errno("accept");
  return accepted;
}

class TcpListener {
 public:
  static std::size_t longest() { return SIZE_MAX; }
  explicit TcpListener(int backlog) : fd_(open_socket(SOCK_STREAM)) {
    bind_anywhere(fd_);
    if (::listen(fd_.get(), backlog) != 0) throw_errno("listen on loopback");
  }
  [[nodiscard]] UniqueFd accept() const { return without_delay(accept_from(fd_)); }
  [[nodiscard]] UniqueFd connect() const {
    UniqueFd fd = open_socket(SOCK_STREAM);
    connect_to(fd, port_of(fd_));
    return without_delay(std::move(fd));
  }

 private:
  static UniqueFd without_delay(UniqueFd fd) {
    const int on = 1;
    if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
      throw_errno("set TCP_NODELAY");
    return fd;
  }

  UniqueFd fd_;
};

// At an abstract name that the kernel chooses.
template <int kType>
class UnixListener {
 public:
  static std::size_t longest() {
    int room = 0;
    socklen_t size = sizeof room;
    if (kType == SOCK_STREAM) return SIZE_MAX;
    const UniqueFd fd = open_socket(kType, AF_UNIX);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &room, &size) != 0) throw_errno("SO_SNDBUF");
    return static_cast<std::size_t>(room) - 32;
  }
  explicit UnixListener(int backlog) : fd_(open_socket(kType, AF_UNIX)) {
    address_.sun_family = AF_UNIX;
    auto* const address = reinterpret_cast<sockaddr*>(&address_);
    if (::bind(fd_.get(), address, sizeof(sa_family_t)) != 0 || ::listen(fd_.get(), backlog) != 0 ||
        ::getsockname(fd_.get(), address, &address_size_) != 0)
      throw_errno("listen at an abstract name");
  }
  [[nodiscard]] UniqueFd accept() const { return accept_from(fd_); }
  [[nodiscard]] UniqueFd connect() const {
    UniqueFd fd = open_socket(kType, AF_UNIX);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), address_size_) != 0)
      throw_errno("connect to an abstract name");
    return fd;
  }

 private:
  UniqueFd fd_;
  sockaddr_un address_{};
  socklen_t address_size_ = sizeof address_;
};

class StreamEnd final : public Endpoint {
 public:
  explicit StreamEnd(UniqueFd fd) : fd_(std::move(fd)) {}
  void send(std::span<const std::byte> message) override {
    while (!message.empty()) {
      const ssize_t sent = ::send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) throw_errno("send");
      message = message.subspan(static_cast<std::size_t>(sent));
    }
  }
  void receive(std::span<std::byte> message) override {
    while (!message.empty()) {
      const ssize_t got = ::recv(fd_.get(), message.data(), message.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_errno("recv");
      if (got == 0) throw SystemError(ECONNRESET, "recv: the other end has closed");
      message = message.subspan(static_cast<std::size_t>(got));
    }
  }

 private:
  UniqueFd fd_;
};

}  // namespace farcall::compare
