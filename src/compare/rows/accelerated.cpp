// SPDX-License-Identifier: Apache-2.0
//
// TCP, UDP and unix sockets as any program uses them, in processes that carry the preload library.
// Nothing here knows of it: what is measured is socket(), connect(), send() and recv().
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "compare/library.hpp"
#include "compare/rows/rows.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

sockaddr_in loopback(in_port_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

UniqueFd open_socket(int type, int family = AF_INET) {
  UniqueFd fd(::socket(family, type | SOCK_CLOEXEC, 0));
  if (!fd) throw_errno("socket");
  return fd;
}

void bind_anywhere(const UniqueFd& fd) {
  const sockaddr_in address = loopback(0);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw_errno("bind to loopback");
}

in_port_t port_of(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw_errno("getsockname");
  return address.sin_port;
}

void connect_to(const UniqueFd& fd, in_port_t port) {
  const sockaddr_in address = loopback(port);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    throw_errno("connect to loopback");
}

UniqueFd accept_from(const UniqueFd& listener) {
  UniqueFd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted) throw_errno("accept");
  return accepted;
}

// --- streams

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

class TcpConnection final : public Connection {
 public:
  static std::size_t longest() { return SIZE_MAX; }
  TcpConnection() : listener_(open_socket(SOCK_STREAM)) {
    bind_anywhere(listener_);
    if (::listen(listener_.get(), 1) != 0) throw_errno("listen on loopback");
  }
  std::unique_ptr<Endpoint> open(Role role) override {
    const UniqueFd listener = std::move(listener_);
    UniqueFd fd;
    if (role == Role::server) {
      fd = accept_from(listener);
    } else {
      fd = open_socket(SOCK_STREAM);
      connect_to(fd, port_of(listener));
    }
    const int on = 1;
    if (::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
      throw_errno("set TCP_NODELAY");
    return std::make_unique<StreamEnd>(std::move(fd));
  }

 private:
  UniqueFd listener_;
};

// At an abstract name that the kernel chooses. A packet comes as one, so that its end is a
// stream's.
template <int kType>
class UnixConnection final : public Connection {
 public:
  static std::size_t longest() {
    int room = 0;
    socklen_t size = sizeof room;
    if (kType == SOCK_STREAM) return SIZE_MAX;
    const UniqueFd fd = open_socket(kType, AF_UNIX);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &room, &size) != 0) throw_errno("SO_SNDBUF");
    return static_cast<std::size_t>(room) - 32;
  }
  UnixConnection() : listener_(open_socket(kType, AF_UNIX)) {
    address_.sun_family = AF_UNIX;
    auto* const address = reinterpret_cast<sockaddr*>(&address_);
    if (::bind(listener_.get(), address, sizeof(sa_family_t)) != 0 ||
        ::listen(listener_.get(), 1) != 0 ||
        ::getsockname(listener_.get(), address, &address_size_) != 0)
      throw_errno("listen at an abstract name");
  }
  std::unique_ptr<Endpoint> open(Role role) override {
    const UniqueFd listener = std::move(listener_);
    if (role == Role::server) return std::make_unique<StreamEnd>(accept_from(listener));
    UniqueFd fd = open_socket(kType, AF_UNIX);
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address_), address_size_) != 0)
      throw_errno("connect to an abstract name");
    return std::make_unique<StreamEnd>(std::move(fd));
  }

 private:
  UniqueFd listener_;
  sockaddr_un address_{};
  socklen_t address_size_ = sizeof address_;
};

// --- UDP: calls only. A stream of datagrams needs somebody who holds it back.

class UdpEnd final : public CallEndpoint {
 public:
  explicit UdpEnd(UniqueFd fd) : fd_(std::move(fd)) {}
  void round_trip(std::span<const std::byte> request, std::span<std::byte> reply) override {
    send_one(request);
    receive_one(reply);
  }
  void serve(Service& service, std::span<std::byte> message) override {
    for (bool more = true; more;) {
      receive_one(message);
      more = service.answer(message);
      send_one(message);
    }
  }

 private:
  void send_one(std::span<const std::byte> message) const {
    if (::send(fd_.get(), message.data(), message.size(), 0) < 0) throw_errno("send");
  }
  void receive_one(std::span<std::byte> message) const {
    for (;;) {
      const ssize_t got = ::recv(fd_.get(), message.data(), message.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw_errno("recv");
      if (static_cast<std::size_t>(got) != message.size())
        throw SystemError(EMSGSIZE, "recv: a datagram of another size");
      return;
    }
  }

  UniqueFd fd_;
};

class UdpConnection final : public Connection {
 public:
  static std::size_t longest() { return 65507; }
  std::unique_ptr<Endpoint> open(Role role) override {
    auto* const ports = reinterpret_cast<std::atomic<in_port_t>*>(memory_.data());
    const auto me = static_cast<std::size_t>(role);
    UniqueFd fd = open_socket(SOCK_DGRAM);
    bind_anywhere(fd);
    // release and acquire: the other end is bound before anybody sends to it
    ports[me].store(port_of(fd), std::memory_order_release);
    in_port_t other = 0;
    for (int i = 0; i < kMostLooks && other == 0; ++i) {
      other = ports[1 - me].load(std::memory_order_acquire);
      if (other == 0) ::usleep(100);
    }
    if (other == 0) throw SystemError(ETIMEDOUT, "wait for the other end");
    connect_to(fd, other);
    // Datagrams of somebody who has not connected yet would be refused.
    ports[2 + me].store(1, std::memory_order_release);
    for (int i = 0; i < kMostLooks && ports[3 - me].load(std::memory_order_acquire) == 0; ++i)
      ::usleep(100);
    return std::make_unique<UdpEnd>(std::move(fd));
  }

 private:
  static constexpr int kMostLooks = 100'000;
  Mapping memory_ = Mapping::anonymous_shared(4 * sizeof(std::atomic<in_port_t>));
};

template <class Made>
class AcceleratedRow final : public Row {
 public:
  explicit AcceleratedRow(RowInfo info) : Row(std::move(info)) {}
  [[nodiscard]] std::string refuses(const Conditions& conditions) const override {
    if (info().streams && conditions.message_bytes == 0)
      return "a stream does not tell of messages without bytes";
    if (conditions.message_bytes > Made::longest())
      return "a packet has at most " + std::to_string(Made::longest()) + " bytes";
    try {
      find_library();
    } catch (const std::exception& error) {
      return error.what();
    }
    return {};
  }
  [[nodiscard]] std::unique_ptr<Connection> make(const Conditions&) const override {
    return std::make_unique<Made>();
  }
};

}  // namespace

void add_accelerated(RowList& list) {
  list.add<AcceleratedRow<TcpConnection>>(
      RowInfo{.mechanism = "tcp_accelerated",
              .engine = "shared",
              .wait = "adaptive",
              .description = "TCP loopback of unmodified programs under farcall run",
              .preloaded = true});
  list.add<AcceleratedRow<UnixConnection<SOCK_STREAM>>>(
      RowInfo{.mechanism = "unix_accelerated",
              .engine = "shared",
              .wait = "adaptive",
              .description = "Unix streams of unmodified programs under farcall run",
              .preloaded = true});
  list.add<AcceleratedRow<UnixConnection<SOCK_SEQPACKET>>>(
      RowInfo{.mechanism = "unix_seqpacket_accelerated",
              .engine = "shared",
              .wait = "adaptive",
              .description = "Unix sockets of packets of unmodified programs under farcall run",
              .preloaded = true});
  list.add<AcceleratedRow<UdpConnection>>(
      RowInfo{.mechanism = "udp_accelerated",
              .engine = "shared",
              .wait = "adaptive",
              .description = "UDP loopback of unmodified programs under farcall run",
              .streams = false,
              .preloaded = true});
}

}  // namespace farcall::compare
