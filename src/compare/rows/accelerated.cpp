// SPDX-License-Identifier: Apache-2.0
//
// TCP, UDP and unix sockets as any program uses them, in processes that carry the preload library.
// Nothing here knows of it: what is measured is socket(), connect(), send() and recv().
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "compare/preload_library.hpp"
#include "compare/rows/rows.hpp"
#include "compare/rows/sockets.hpp"
#include "farcall/error.hpp"
#include "farcall/memory.hpp"

namespace farcall::compare {
namespace {

// A packet comes as one, so that its end is a stream's.
template <class Listener>
class SocketConnection final : public Connection {
 public:
  static std::size_t longest() { return Listener::longest(); }
  std::unique_ptr<Endpoint> open(Role role) override {
    const Listener listener = std::move(listener_);
    return std::make_unique<StreamEnd>(role == Role::server ? listener.accept()
                                                            : listener.connect());
  }

 private:
  Listener listener_{1};
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
void add(RowList& list, const char* mechanism, const char* description, bool streams = true) {
  list.add({.mechanism = mechanism,
            .engine = "shared",
            .wait = "adaptive",
            .description = description,
            .streams = streams,
            .preloaded = true},
           makes<Made>(), [streams](const Conditions& conditions) -> std::string {
             if (streams && conditions.message_bytes == 0)
               return "a stream does not tell of messages without bytes";
             if (conditions.message_bytes > Made::longest())
               return "a packet has at most " + std::to_string(Made::longest()) + " bytes";
             return why_no_library();
           });
}

}  // namespace

void add_accelerated(RowList& list) {
  add<SocketConnection<TcpListener>>(list, "tcp_accelerated",
                                     "TCP loopback of unmodified programs under farcall run");
  add<SocketConnection<UnixListener<SOCK_STREAM>>>(
      list, "unix_accelerated", "Unix streams of unmodified programs under farcall run");
  add<SocketConnection<UnixListener<SOCK_SEQPACKET>>>(
      list, "unix_seqpacket_accelerated",
      "Unix sockets of packets of unmodified programs under farcall run");
  add<UdpConnection>(list, "udp_accelerated",
                     "UDP loopback of unmodified programs under farcall run", false);
}

}  // namespace farcall::compare
